"""Why a program cannot be executed: each reason in words of its own, and a shell's exit code (Y3)."""

import os
import socket
import struct
import sys
from pathlib import Path

import pytest

from kurma_core.linux import execute
from kurma_core.linux.execute import ExecuteError
from kurma_core.linux.process import DEFAULT_PATH


def why(argv, environment=None):
    """Said by both ways, with one mouth; before the last step, or after it."""
    with pytest.raises(ExecuteError) as caught:
        execute.execute(argv, environment or {})
    with pytest.raises(ExecuteError) as after:
        execute.execute_after(lambda: None, argv, environment or {})
    assert (str(after.value), after.value.exit_code) == (str(caught.value), caught.value.exit_code)
    return caught.value


def made(path, content=b"", mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def elf(machine=62, kind=2, loader=None, at=64, wide=True):
    """A program's headers and nothing else.

    :param at: where the table of program headers is.
    """
    name = b"" if loader is None else loader.encode() + b"\0"
    head = bytearray(64)
    head[:7] = b"\x7fELF" + (b"\x02" if wide else b"\x01") + b"\x01\x01"
    struct.pack_into("<HH", head, 16, kind, machine)
    if wide:
        struct.pack_into("<Q", head, 32, at)
        struct.pack_into("<HH", head, 54, 56, 1 if name else 0)
        entry = struct.pack("<IIQQQQQQ", 3, 4, at + 56, 0, 0, len(name), len(name), 1)
    else:
        struct.pack_into("<I", head, 28, at)
        struct.pack_into("<HH", head, 42, 32, 1 if name else 0)
        entry = struct.pack("<IIIIIIII", 3, at + 32, 0, 0, len(name), len(name), 4, 1)
    return bytes(head).ljust(at, b"\0") + (entry + name if name else b"")


#: What is made at ``program``, and what is said of it; ``HERE`` is the directory.
CASES = {
    "no permission": (b"#!/bin/sh\n", 0o644, "is not executable (mode 0644)"),
    "empty": (b"", 0o755, "is empty"),
    "text": (b"hello\n", 0o755, "is neither an ELF program nor a script that begins with #!"),
    "no interpreter": (b"#! \t\nexit\n", 0o755, "its #! line names no interpreter"),
    "interpreter missing": (b"#! /nope/sh -e\n", 0o755, "the script's interpreter /nope/sh is missing"),
    "no newline": (b"#!/nope/sh", 0o755, "the script's interpreter /nope/sh is missing"),
    "DOS": (
        b"#!/bin/sh\r\necho\r\n",
        0o755,
        "the script's interpreter /bin/sh is missing: the line ends with a carriage return, as in DOS",
    ),
    "long": (
        b"#!/" + b"x" * 300 + b"\n",
        0o755,
        "its #! line is too long: an interpreter's name must end within 256 bytes",
    ),
    "interpreter is a directory": (b"#!/etc\n", 0o755, "the script's interpreter /etc: is a directory"),
    "interpreter is a device": (
        b"#!/dev/null\n",
        0o755,
        "the script's interpreter /dev/null: is not a regular file",
    ),
    "interpreter is not a program": (
        b"#!/etc/passwd x\n",
        0o755,
        "the script's interpreter /etc/passwd: is not executable (mode 0644)",
    ),
    "interpreter is of another machine": (
        b"#!HERE/other\n",
        0o755,
        "the script's interpreter HERE/other: is built for s390x, this machine is x86_64",
    ),
    "interpreter's own interpreter": (
        b"#!HERE/script\n",
        0o755,
        "the script's interpreter HERE/script: the script's interpreter /nope/perl is missing",
    ),
    "interpreter is a loop of links": (
        b"#!HERE/links\n",
        0o755,
        "the script's interpreter HERE/links: too many symbolic links",
    ),
    "another machine": (elf(243), 0o755, "is built for riscv64, this machine is x86_64"),
    "an unknown machine": (elf(9999), 0o755, "is built for ELF machine 9999, this machine is x86_64"),
    "an object": (elf(kind=1), 0o755, "is an ELF file, but no program"),
    "cut short": (b"\x7fELF\2\1\1", 0o755, "is a truncated ELF program"),
    "headers that are not there": (elf(loader="/x")[:64], 0o755, "is a damaged ELF program"),
    "loader missing": (
        elf(loader="/nope/ld.so"),
        0o755,
        "its ELF loader /nope/ld.so is missing (is a library missing from the image?)",
    ),
    "loader far in": (
        elf(loader="/nope/ld.so", at=5000),
        0o755,
        "its ELF loader /nope/ld.so is missing (is a library missing from the image?)",
    ),
    "loader not executable": (
        elf(loader="/etc/passwd"),
        0o755,
        "its ELF loader /etc/passwd: is not executable (mode 0644)",
    ),
    "loader of another machine": (
        elf(loader="HERE/other"),
        0o755,
        "its ELF loader HERE/other: is built for s390x, this machine is x86_64",
    ),
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the ELF programs are x86-64's")
@pytest.mark.parametrize("case", CASES)
def test_why_not_executable(tmp_path, case):
    content, mode, reason = CASES[case]
    made(tmp_path / "other", elf(22))
    made(tmp_path / "script", b"#!/nope/perl\n")
    (tmp_path / "links").symlink_to("links")
    here = str(tmp_path)
    if b"HERE" in content and content[:2] != b"#!":
        content = elf(loader=f"{here}/other")  # its length stands in the headers
    program = made(tmp_path / "program", content.replace(b"HERE", os.fsencode(here)), mode)
    error = why([program])
    assert (error.exit_code, error.strerror, error.filename) == (126, reason.replace("HERE", here), program)
    assert str(error) == f"{program}: {error.strerror}"


def test_a_program_for_32_bits_names_its_loader(tmp_path):
    """Where the kernel takes them; else it is of another machine."""
    program = made(tmp_path / "program", elf(3, loader="/nope/ld-linux.so.2", wide=False))
    assert why([program]).strerror in (
        "its ELF loader /nope/ld-linux.so.2 is missing (is a library missing from the image?)",
        f"is built for i386, this machine is {os.uname().machine}",
    )


def test_scripts_that_interpret_each_other(tmp_path):
    made(tmp_path / "a", b"#!%s/b\n" % os.fsencode(tmp_path))
    made(tmp_path / "b", b"#!%s/a\n" % os.fsencode(tmp_path))
    error = why([f"{tmp_path}/a"])
    assert error.exit_code == 126
    assert str(error.strerror).endswith(": too many scripts that interpret each other")


def test_not_found(tmp_path):
    (tmp_path / "dangling").symlink_to("gone")
    for argv, environment, reason in (
        ([f"{tmp_path}/nope"], {}, "not found"),
        (["/etc/passwd/x"], {}, "not found"),
        (["./nope"], {}, "not found"),
        (["nope-nope"], {"PATH": str(tmp_path)}, f"not found in {tmp_path}"),
        (["nope-nope"], {"PATH": ""}, "not found in the current directory"),
        (["nope-nope"], {}, f"not found in {DEFAULT_PATH}"),
        (["x" * 300], {"PATH": "/bin"}, "not found in /bin"),
        (
            ["ls -l"],
            {"PATH": "/bin"},
            "not found in /bin; the blanks belong to its name: arguments are words of their own",
        ),
        (["/bin/ls -l"], {}, "not found; the blanks belong to its name: arguments are words of their own"),
        ([""], {}, "the command's name is empty"),
        ([f"{tmp_path}/dangling"], {}, "is a link to gone, which is missing"),
    ):
        error = why(argv, environment)
        assert (error.exit_code, error.strerror) == (127, reason), argv


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    os.chmod(tmp_path / "fifo", 0o755)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{tmp_path}/socket")
    (tmp_path / "loop").symlink_to("loop")
    for path, reason in (
        (f"{tmp_path}", "is a directory"),
        (f"{tmp_path}/fifo", "is not a regular file"),
        (f"{tmp_path}/socket", "is not a regular file"),
        ("/dev/null", "is not a regular file"),
        (f"{tmp_path}/loop", "too many symbolic links"),
        ("/" + "x" * 300, "file name too long"),
    ):
        error = why([path])
        assert (error.exit_code, error.strerror) == (126, reason), path


def test_too_many_words():
    error = why(["/bin/true", "x" * (3 << 20)])
    assert (error.exit_code, error.strerror) == (126, "its arguments and environment are too long for this kernel")


@pytest.mark.parametrize(
    ("argv", "environment"),
    [(["/bin/true", "a\0b"], {}), (["/bin/true"], {"A": "\0"}), (["/bin/true"], {"A=B": ""})],
)
def test_words_that_no_program_can_be_given(argv, environment):
    assert why(argv, environment).exit_code == 126


def test_open_for_writing(tmp_path):
    program = made(tmp_path / "program", Path("/bin/true").read_bytes())
    with open(program, "ab"):
        error = why([program])
    assert (error.exit_code, error.strerror) == (126, "is open for writing")


def after_nothing(argv, environment):
    execute.execute_after(lambda: None, argv, environment)


def searched(path, directory, way):
    """What a child that searches PATH prints, its exit code, what it says."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(directory)
            os.dup2(write, 1)
            way(["tool"], {"PATH": path})
        except ExecuteError as error:
            os.write(write, str(error).encode())
            os._exit(error.exit_code)
        finally:
            os._exit(1)
    os.close(write)
    with open(read) as out:
        text = out.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def test_the_search(tmp_path):
    """The first part that has it; empty parts are the current directory, relative ones are relative to it."""
    for name in ("here", "here/bin", "first", "second"):
        made(tmp_path / name / "tool", f"#!/bin/sh\nprintf {name}\n".encode())
    made(tmp_path / "plain" / "tool", b"#!/bin/sh\n", 0o644)
    made(tmp_path / "broken" / "tool", b"#!/nope/sh\n")
    (tmp_path / "directory" / "tool").mkdir(parents=True)
    made(tmp_path / "file" / "x")
    here, base = str(tmp_path / "here"), str(tmp_path)
    for path, code, said in (
        (f"{base}/first:{base}/second", 0, "first"),
        (f"{base}/none:{base}/second", 0, "second"),
        (f":{base}/first", 0, "here"),
        (f"{base}/none::{base}/first", 0, "here"),
        (f"{base}/none:", 0, "here"),
        ("", 0, "here"),
        ("bin", 0, "here/bin"),
        (f"{base}/plain:{base}/second", 0, "second"),
        (f"{base}/directory:{base}/second", 0, "second"),
        (f"{base}/file/x:{base}/second", 0, "second"),
        (f"{base}/none:{base}/plain", 126, f"{base}/plain/tool: is not executable (mode 0644)"),
        # A shell would not run another one in its stead either.
        (f"{base}/broken:{base}/second", 126, f"{base}/broken/tool: the script's interpreter /nope/sh is missing"),
        (f"{base}/none", 127, f"tool: not found in {base}/none"),
    ):
        for way in (execute.execute, after_nothing):
            assert searched(path, here, way) == (code, said), (path, way)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="changes users")
def test_who_may_not(tmp_path):
    """As another user: the file itself, a directory on the way, a part of PATH that cannot be searched."""
    private = made(tmp_path / "private", b"#!/bin/sh\n", 0o700)
    hidden = made(tmp_path / "closed" / "tool", b"#!/bin/sh\n")
    os.chmod(tmp_path / "closed", 0o700)
    top = tmp_path
    while os.stat(top).st_uid == 0 and len(top.parts) > 2:
        os.chmod(top, os.stat(top).st_mode | 0o055)
        top = top.parent
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(4711, 4711, 4711)
        os.setresuid(4711, 4711, 4711)
        for argv in ([private], [hidden], ["tool"]):
            try:
                execute.execute(argv, {"PATH": f"{tmp_path}/closed"})
            except ExecuteError as error:
                os.write(write, f"{error.exit_code} {error}\n".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as out:
        assert out.read().splitlines() == [
            f"126 {private}: user 4711 may not execute it (mode 0700, owner 0, group 0)",
            f"126 {hidden}: user 4711 may not search a directory on the way",
            f"127 tool: not found in {tmp_path}/closed",
        ]
