"""Files that people name."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kurma_core.errors import ArchiveError, HostError, UsageError
from kurma_core.named_files import content, naming, opened, writable, written


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (str(tmp_path / "pipe"), "it is not a regular file"),
        ("/dev/zero", "it is not a regular file"),
        (str(tmp_path), "it is a directory"),
        (str(tmp_path / "none"), "no such file or directory"),
    ):
        with pytest.raises(HostError, match=f"^{re.escape(path)}: cannot be read: {why}$"):
            opened(path).close()
        with pytest.raises(UsageError, match=f"^--x: {re.escape(path)}: cannot be read: {why}$"):
            content(path, option="--x")


def test_what_has_no_end_is_read_to_a_limit(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"^/dev/zero: .* is larger than 1000 bytes$"):
        content("/dev/zero", endless=True, largest=1000)
    with pytest.raises(HostError, match="it is a directory"):
        content(str(tmp_path), endless=True)
    reading, writing = os.pipe()
    os.write(writing, b"said")
    os.close(writing)
    assert content(f"/proc/self/fd/{reading}", endless=True) == b"said"
    os.close(reading)
    (tmp_path / "file").write_bytes(bytes(1000))
    assert content(str(tmp_path / "file"), largest=1000) == bytes(1000)


def test_nothing_but_a_regular_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("none")
    before = {name: os.lstat(tmp_path / name) for name in os.listdir(tmp_path)}
    for name, what in (
        ("pipe", "not a regular file"),
        ("directory", "a directory"),
        ("link", "a symbolic link"),
        ("dangling", "a symbolic link"),
    ):
        path = str(tmp_path / name)
        for way in (writable, lambda path: written(path).__enter__()):
            with pytest.raises(UsageError, match=f"^{re.escape(path)}: cannot be written: it is {what}$"):
                way(path)
    assert {name: os.lstat(tmp_path / name) for name in os.listdir(tmp_path)} == before
    with written(str(tmp_path / "file")) as out:
        out.write(b"new")
    assert (tmp_path / "file").read_text() == "new"


def test_what_comes_meanwhile_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    with pytest.raises(UsageError, match="it is not a regular file"), written(path):
        os.mkfifo(path)
    assert os.listdir(tmp_path) == ["x"]
    assert stat.S_ISFIFO(os.lstat(path).st_mode)


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match=r"/a/b: cannot be written: there is no directory") as caught:
        writable(str(tmp_path / "a" / "b"))
    assert caught.value.hint == f"mkdir -p {tmp_path}/a"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^-: standard output is not written to$") as usage:
        writable("-")
    assert usage.value.hint == "name a file; ./- is one called -"
    with written("./-") as out:
        out.write(b"x")
    assert os.listdir(tmp_path) == ["-"]


@pytest.mark.parametrize("error", [KeyError, OSError, KeyboardInterrupt])
def test_it_appears_whole_or_not_at_all(error: type[BaseException], tmp_path: Path) -> None:
    path = str(tmp_path / "a")

    def half() -> None:
        with written(path) as out:
            out.write(b"half")
            raise error

    with pytest.raises(HostError if error is OSError else error):
        half()
    assert os.listdir(tmp_path) == []
    with written(path) as out:
        out.write(b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_a_full_disk_names_the_file_and_what_cannot_be_read_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with pytest.raises(HostError, match=f"^{re.escape(path)}: cannot be written: no space"), written(path):
        raise OSError(28, "No space left on device")
    with pytest.raises(HostError, match=r"^/rootfs/secret: permission denied$"), written(path):
        raise PermissionError(13, "Permission denied", "/rootfs/secret")


def test_an_archive_s_fault_is_said_with_its_name_once() -> None:
    for message in ("it is broken", "x.aci: it is broken"):
        with pytest.raises(ArchiveError) as caught, naming("x.aci"):
            raise ArchiveError(message)
        assert caught.value.message == "x.aci: it is broken"
    with pytest.raises(ArchiveError, match=r"^it is broken$"), naming(None):
        raise ArchiveError("it is broken")


_KILLED = """
import os, signal, sys
from kurma_core.named_files import written
with written(sys.argv[1]) as out:
    out.write(b"half")
    out.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "file")], check=False)
    assert (done.returncode, os.listdir(tmp_path)) == (-9, [])


def test_where_files_without_a_name_are_not_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    (tmp_path / "file").write_text("old")
    with written(str(tmp_path / "file")) as out:
        out.write(b"new")
        assert len(os.listdir(tmp_path)) == 2
    assert (os.listdir(tmp_path), (tmp_path / "file").read_text()) == (["file"], "new")
    with pytest.raises(ValueError, match="x"), written(str(tmp_path / "file")) as out:
        raise ValueError("x")
    assert (os.listdir(tmp_path), (tmp_path / "file").read_text()) == (["file"], "new")


def test_where_nothing_can_be_made_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not its directory, nor a name that it would have had on the way."""
    path = tmp_path / "file"
    told = f"^{re.escape(str(path))}: cannot be written: "
    real = os.open

    def refusing(name: str, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return real(name, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        with (
            pytest.raises(HostError, match=f"{told}read-only"),
            written(str(path)),
        ):
            pass

    def no_link(source: str, target: str, **_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, target)

    monkeypatch.setattr(os, "link", no_link)
    with (
        pytest.raises(HostError, match=f"{told}no space"),
        written(str(path)),
    ):
        pass
    assert os.listdir(tmp_path) == []
