"""Filters of system calls in pods: main, handlers, what is entered and added; how a denied call ends (X4)."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from kurma_core.api.pods import AppOverrides
from kurma_core.errors import PowerError
from tests.kit.images import archive, busybox_root, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

REMOVE, RETAIN = "os/linux/seccomp-remove-set", "os/linux/seccomp-retain-set"
PROFILE = "kurma.io/seccomp-profile"
SIGSYS = 31
MKDIR = ["mkdir", "mkdirat"]


def filtered(script, name, calls, errno=None, **fields):
    value = {"set": calls, **({"errno": errno} if errno else {})}
    return shell(script, isolators=[{"name": name, "value": value}], **fields)


def handler(name, script):
    return {"name": name, "exec": ["/bin/sh", "-c", script]}


def reports(record, app="main"):
    return {report.name: report for report in record.isolators if report.scope == app}


def run(house, app, **options):
    return house.run({"main": app}, **options)


def is_plain(record, app="main"):
    """Whether the app runs under the profile and nothing was left out."""
    report = reports(record, app)[PROFILE]
    return report.default and report.outcome == "enforced"


# --- programs without a library, so that every call that they make is here ---------------------------------------


def program(code):
    """An ELF program of that machine code, and nothing else."""

    def words(size, *values):
        return b"".join(value.to_bytes(size, "little") for value in values)

    base, start = 0x400000, 120
    machine = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + words(2, 2, machine) + words(4, 1) + words(8, base + start, 64, 0)
    header += words(4, 0) + words(2, 64, 56, 1, 0, 0, 0)
    size = start + len(code)
    return header + words(4, 1, 5) + words(8, 0, base, base, size, size, 4096) + code


# eax → exit status
_EXIT = bytes.fromhex("89c7 b83c000000 0f05")
X86_64 = {
    # getpid as a 32-bit program calls it, as x32 does, and as itself; each exits with what it was told
    "int80": bytes.fromhex("b814000000 cd80") + _EXIT,
    "x32": bytes.fromhex("b827000040 0f05") + _EXIT,
    "native": bytes.fromhex("b827000000 0f05") + _EXIT,
    "quiet": bytes.fromhex("31c0") + _EXIT,
}
# mov x8, 172 (or x0, 0); svc 0; mov x8, 93; svc 0. Other calls than these a program of 64 bits cannot make there.
_EXIT_64 = bytes.fromhex("a80b80d2 010000d4")
AARCH64 = {
    "native": bytes.fromhex("881580d2 010000d4") + _EXIT_64,
    "quiet": bytes.fromhex("000080d2") + _EXIT_64,
}
PROGRAMS = {"x86_64": X86_64, "aarch64": AARCH64}[os.uname().machine]
DOORS = [name for name in PROGRAMS if name in ("int80", "x32")]


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory):
    """An image of such programs."""
    directory = tmp_path_factory.mktemp("code")
    root = busybox_root(str(directory / "root"))
    for name, code in PROGRAMS.items():
        with open(f"{root}/bin/{name}", "wb") as file:
            file.write(program(code))
        os.chmod(f"{root}/bin/{name}", 0o755)
    return archive(root, str(directory / "code.aci"), "example.com/code", app=shell("true"))


@pytest.fixture
def coded(make_house, machine_code):
    house = make_house({"stop_timeout": 3})
    house.image = house.client.here.images.fetch(machine_code).id
    return house


@pytest.mark.vm
def test_it_takes_nothing_to_start_but_what_is_kept(coded):
    """From the filter to the program, only execve is called: the smallest set there is runs a program."""
    app = {"exec": ["/bin/quiet"], "user": "0", "group": "0"}
    for value in ({"set": ["getpid"]}, {"set": ["getpid"], "errno": "EXDEV"}):
        record, _ = coded.run({"main": {**app, "isolators": [{"name": RETAIN, "value": value}]}})
        assert (record.apps[0].exit_code, record.apps[0].reason) == (0, "exited")
    assert reports(record)[RETAIN].note == "kept besides: execve, exit, exit_group, restart_syscall, rt_sigreturn"
    assert not reports(record)[RETAIN].default
    assert PROFILE not in reports(record)


@pytest.mark.parametrize("kind", [REMOVE, RETAIN, pytest.param(PROFILE, marks=pytest.mark.vm)])
def test_the_32_bit_doors_are_closed(coded, kind):
    """Real calls by ``int 0x80`` and in x32's numbers; the same program's own call works."""

    def ended(name, errno=None):
        calls = ["mount"] if kind == REMOVE else ["getpid"]
        value = {"set": calls, **({"errno": errno} if errno else {})}
        isolators = [] if kind == PROFILE else [{"name": kind, "value": value}]
        app = {"exec": [f"/bin/{name}"], "user": "0", "group": "0", "isolators": isolators}
        return coded.run({"main": app})[0].apps[0]

    assert ended("native").reason == "exited"
    assert ended("native").exit_code not in (0, 256 - 18)
    for name in DOORS:
        app = ended(name)
        assert (app.exit_code, app.reason, app.signal) == (128 + SIGSYS, "killed", SIGSYS), name
        if kind != PROFILE:
            assert ended(name, "EXDEV").exit_code == 256 - 18, name


def test_without_a_filter_the_doors_are_open(coded):
    """What the tests above are worth; and what to ask for, to run a 32-bit program."""
    for isolator in ({"name": RETAIN, "value": {"set": ["@appc.io/all"]}}, {"name": PROFILE, "value": "none"}):
        app = {"exec": [f"/bin/{[*DOORS, 'native'][0]}"], "user": "0", "group": "0", "isolators": [isolator]}
        record, _ = coded.run({"main": app}, grants=(isolator["name"],))
        assert record.apps[0].reason == "exited"
        assert record.apps[0].exit_code not in (0, 256 - 38)
        assert reports(record)[isolator["name"]].note == "every system call is allowed"


# --- sets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["0", pytest.param("1000", marks=pytest.mark.vm)])
def test_a_removed_call_returns_its_errno(house, user):
    """For main, both handlers and what is entered; for root and a plain user."""
    mkdir = "mkdir /tmp/$0 2>&1 || :"
    app = filtered(f"{mkdir}; echo up; exec sleep 1000", REMOVE, MKDIR, "EXDEV", user=user, group="100")
    app["eventHandlers"] = [handler("pre-start", mkdir), handler("post-stop", mkdir)]
    refused = "can't create directory '/tmp/{}': Invalid cross-device link\n".format
    with house.running({"main": app, "free": "mkdir /tmp/free && echo made; exec sleep 1000"}) as pod:
        record = house.client.pod(pod.uuid)
        until(lambda: "up\n" in house.log(record, "main"), "the app's own call")
        until(lambda: house.log(record, "free") == "made\n", "the other app's call")
        code, out, _ = house.enter(pod.uuid, "/bin/sh", "-c", mkdir, app="main")
        assert (code, out) == (0, "mkdir: " + refused("/bin/sh"))
        pod.stop(force=False)
        pod.stager.wait()
    assert house.log(record, "main").count(refused("/bin/sh")) == 3
    assert house.log(record, "free") == "made\n"
    assert (reports(record)[REMOVE].outcome, reports(record)[REMOVE].note) == ("enforced", "")
    assert is_plain(record, "free")


def test_a_call_without_an_errno_is_deadly_and_it_is_told(house):
    app = filtered("mkdir /tmp/x; echo $?; exec mkdir /tmp/y", REMOVE, MKDIR)
    record, output = run(house, app)
    assert (record.exit_code, record.apps[0].reason, record.apps[0].signal) == (128 + SIGSYS, "killed", SIGSYS)
    assert "159\n" in output
    command = [sys.executable, "-c", "from kurma_core.cli.main import main; raise SystemExit(main())"]
    command += ["--dir", house.state, "--config", house.config_file, "show", record.uuid]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "SIGSYS" in shown
    assert REMOVE in shown


def test_busybox_runs_under_what_docker_and_rkt_allow(house):
    script = "exec 2>&1; mkdir /tmp/a; ls / >/dev/null; (sleep 0.01 | cat) && umount /proc; echo $?"
    for wildcard in ("@docker/default-whitelist", "@rkt/default-whitelist"):
        record, output = run(house, filtered(script, RETAIN, [wildcard], "EXDEV"))
        assert record.exit_code == 0
        assert output.endswith("Invalid cross-device link\n1\n"), output
    record, output = run(house, filtered("umount /proc; echo $?", REMOVE, ["@rkt/default-blacklist"]))
    assert "159\n" in output


def test_a_program_that_is_not_there_is_told_under_any_filter(house):
    """The program is looked for before the filter is put on, which may refuse to look."""
    root = {"user": "0", "group": "0", "isolators": [{"name": RETAIN, "value": {"set": ["read"]}}]}
    for command, code, message in (
        ("/bin/missing", 127, "/bin/missing: not found"),
        ("missing", 127, "missing: not found in /usr/local/sbin"),
        ("/etc/passwd", 126, "/etc/passwd: is not executable (mode 0644)"),
        ("/tmp", 126, "/tmp: is a directory"),
    ):
        record, _ = house.run({"main": {"exec": [command], **root}})
        app = record.apps[0]
        assert (app.exit_code, app.reason) == (code, "start-failed"), command
        assert message in app.message


@pytest.mark.parametrize("user", ["0", "1000"])
def test_no_new_privileges_beside_a_filter(house, user):
    """With and without it the filter holds; only with it does a set-user-ID program stay what it is."""
    script = "mkdir /tmp/x 2>&1; grep -e NoNewPrivs -e Seccomp: -e CapEff /proc/self/status"
    for nnp in (True, False):
        app = filtered(script, REMOVE, MKDIR, "EXDEV", user=user, group="100")
        app["isolators"].append({"name": "os/linux/no-new-privileges", "value": nnp})
        record, output = run(house, app)
        assert record.exit_code == 0
        assert "Invalid cross-device link" in output
        words = dict(line.split(":\t") for line in output.splitlines() if ":\t" in line)
        assert (words["NoNewPrivs"], words["Seccomp"]) == (str(int(nnp)), "2")
        assert (int(words["CapEff"], 16) == 0) == (user == "1000")


# --- the profile -------------------------------------------------------------------------------------------------

# Each line prints what became of one attempt, by an errno's name.
ATTEMPTS = """
import ctypes, errno, os, socket, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(arg) for arg in args])
    print(name, "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()])
def family(name, number):
    try:
        socket.socket(number, socket.SOCK_STREAM if name == "vsock" else socket.SOCK_SEQPACKET).close()
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
x86 = os.uname().machine == "x86_64"
# Before the next, which leaves the rights behind: Linux 6.1 asks for them first.
attempt("bpf", 321 if x86 else 280, 0, 0, 0)
attempt("unshare-user", 272 if x86 else 97, 0x10000000)
attempt("unshare-files", 272 if x86 else 97, 0x400)
attempt("setns", 308 if x86 else 268, 0, 0)
attempt("clone3", 435, 0, 0)
attempt("new", 499)
attempt("perf", 298 if x86 else 241, 0, 0, -1, -1, 0)
attempt("userfaultfd", 323 if x86 else 282, 1)
attempt("keyctl", 250 if x86 else 219, 0, -3, 0)
attempt("syslog", 103 if x86 else 116, 10, 0, 0)
attempt("io_uring", 425, 1, 0)
attempt("personality", 135 if x86 else 92, 0x40000)
attempt("personality-now", 135 if x86 else 92, 0xffffffff)
attempt("statx", 332 if x86 else 291, 0, 0, 0, 0, 0)
family("vsock", 40)
family("alg", 38)
thread = threading.Thread(target=print, args=("thread ok",)); thread.start(); thread.join()
child = subprocess.run([sys.executable, "-c", "print('ok')"], capture_output=True, text=True)
print("child", child.stdout.strip())
"""
REFUSED = {
    **dict.fromkeys(("unshare-user", "setns", "bpf", "perf", "userfaultfd", "keyctl"), "EPERM"),
    **dict.fromkeys(("syslog", "io_uring", "personality"), "EPERM"),
    **dict.fromkeys(("clone3", "new"), "ENOSYS"),
    **dict.fromkeys(("vsock", "alg"), "EAFNOSUPPORT"),
    **dict.fromkeys(("unshare-files", "personality-now", "thread", "child"), "ok"),
    "statx": "EFAULT",
}


def seen(output):
    return dict(line.split(" ") for line in output.splitlines())


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """An image with Debian's Python, its libraries and what it loads: a program of the kind that people run."""
    directory = tmp_path_factory.mktemp("debian")
    root = busybox_root(str(directory / "root"), {"attempts.py": ATTEMPTS})
    python = "/usr/bin/python3"
    listed = subprocess.run(["ldd", python], capture_output=True, text=True, check=True).stdout
    needed = {word for word in listed.split() if word.startswith("/")} | {python}
    ctypes = "import ctypes, _ctypes, sysconfig; print(_ctypes.__file__, sysconfig.get_path('stdlib'))"
    shared, library = subprocess.run(
        [python, "-Ic", ctypes], capture_output=True, text=True, check=True, cwd="/"
    ).stdout.split()
    listed = subprocess.run(["ldd", shared], capture_output=True, text=True, check=True).stdout
    needed |= {word for word in listed.split() if word.startswith("/")}
    for path in needed:
        os.makedirs(f"{root}{os.path.dirname(path)}", exist_ok=True)
        shutil.copy(path, f"{root}{path}")
    ignored = shutil.ignore_patterns("__pycache__", "test*", "dist-packages", "idlelib", "lib2to3", "config-*")
    shutil.copytree(library, f"{root}{library}", ignore=ignored)
    return archive(root, str(directory / "debian.aci"), "example.com/debian", app=shell("true"))


@pytest.fixture
def pythonic(make_house, debian):
    house = make_house({"stop_timeout": 3})
    house.image = house.client.here.images.fetch(debian).id
    return house


def attempts(**fields):
    return {"exec": ["/usr/bin/python3", "-I", "/attempts.py"], "user": "0", "group": "0", **fields}


@pytest.mark.parametrize("user", ["0", pytest.param("1000", marks=pytest.mark.vm)])
def test_what_containers_never_need_is_refused(pythonic, user):
    record, output = pythonic.run({"main": attempts(user=user, group="100")})
    assert record.exit_code == 0, output
    assert seen(output) == REFUSED
    assert is_plain(record)


@pytest.mark.vm
def test_in_a_user_namespace_too(pythonic):
    record, output = pythonic.run({"main": attempts()}, userns="auto")
    assert record.exit_code == 0, output
    assert seen(output) == REFUSED
    assert is_plain(record)


@pytest.mark.vm
def test_what_is_granted_opens_its_calls(pythonic):
    """CAP_SYS_ADMIN brings namespaces and more; CAP_SYSLOG the kernel's log alone."""

    def granted(*names):
        value = {"set": [f"CAP_{name}" for name in names]}
        isolators = [{"name": "os/linux/capabilities-retain-set", "value": value}]
        apps = {"main": attempts(isolators=isolators)}
        record, output = pythonic.run(apps, grants=(isolators[0]["name"],))
        assert record.exit_code == 0, output
        return seen(output)

    found = granted("SYSLOG")
    assert {name for name in REFUSED if found[name] != REFUSED[name]} == {"syslog"}
    assert found["syslog"] == "ok"
    found = granted("SYS_ADMIN")
    assert found["unshare-user"] == "ok"
    assert (found["setns"], found["clone3"]) == ("EINVAL", "EINVAL")
    assert [found[name] for name in ("bpf", "perf")].count("EPERM") == 0
    assert {name: found[name] for name in ("keyctl", "userfaultfd", "io_uring", "vsock")} == {
        name: REFUSED[name] for name in ("keyctl", "userfaultfd", "io_uring", "vsock")
    }


def test_without_the_profile_the_calls_reach_the_kernel(pythonic):
    """What the tests above are worth: here the kernel answers, and it lets an app make namespaces."""
    isolators = [{"name": PROFILE, "value": "none"}]
    record, output = pythonic.run({"main": attempts(isolators=isolators)}, grants=(f"{PROFILE}=none",))
    assert record.exit_code == 0, output
    found = seen(output)
    assert (found["unshare-user"], found["clone3"], found["personality"]) == ("ok", "EINVAL", "ok")
    assert not reports(record)[PROFILE].default


def test_a_shell_under_the_profile(house):
    """Main, handlers, what is entered and an app that comes later."""
    script = "unshare -U true 2>/dev/null && echo bad; grep Seccomp: /proc/self/status; date | cat >/dev/null"
    app = shell(f"{script}; exec sleep 1000")
    app["eventHandlers"] = [handler("pre-start", script), handler("post-stop", script)]
    with house.running({"main": app}) as pod:
        with house.connect() as client:
            client.app_add(pod.uuid, house.request({"later": f"{script}; exec sleep 1000"}), start=True)
        code, out, _ = house.enter(pod.uuid, "/bin/sh", "-c", script, app="main")
        assert (code, out) == (0, "Seccomp:\t2\n")
        record = house.client.pod(pod.uuid)
        pod.stop(force=False)
        pod.stager.wait()
    assert house.log(record, "main") == "Seccomp:\t2\n" * 3
    assert house.log(record, "later") == "Seccomp:\t2\n"
    assert is_plain(record)
    assert is_plain(record, "later")


def test_it_cannot_be_left(house):
    """Not by a child, nor by putting on another one."""
    with house.running("sleep 1000") as pod:
        code, out, err = house.enter(pod.uuid, "/bin/sh", "-c", "sh -c 'unshare -m true'; echo $?")
        assert (code, out) == (0, "1\n"), err
        assert "Operation not permitted" in err


# --- what an image asks for --------------------------------------------------------------------------------------

# Opens a file of the host by its handle alone, on the file system that /etc/hosts is mounted from.
READER = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
kind, handle = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
wanted = len(handle).to_bytes(4, "little") + kind.to_bytes(4, "little") + handle
mount = os.open("/etc/hosts", os.O_RDONLY)
fd = libc.open_by_handle_at(mount, wanted, os.O_RDWR)
if fd < 0:
    sys.exit(errno.errorcode[ctypes.get_errno()])
print(os.read(fd, 100).decode())
"""


def handle_of(path):
    """Type and bytes of a file's handle, which is not a secret: its inode's number, and how often "
    "that was used."""
    libc = ctypes.CDLL(None, use_errno=True)
    found, mount = ctypes.create_string_buffer((128).to_bytes(4, "little"), 8 + 128), ctypes.c_int()
    assert libc.name_to_handle_at(-100, path.encode(), found, ctypes.byref(mount), 0) == 0, ctypes.get_errno()
    size, kind = (int.from_bytes(found.raw[at : at + 4], "little") for at in (0, 4))
    return str(kind), found.raw[8 : 8 + size].hex()


@pytest.mark.vm
def test_an_image_grants_itself_no_way_to_files_of_the_host(pythonic, tmp_path):
    """The image asks for capabilities that open files by handle, and so reach the host's by the /etc/hosts mount.
    It is refused at each level, without a trace, unless the caller grants it; then restarts keep it."""
    capabilities = "os/linux/capabilities-retain-set"
    powers = [f"{capabilities}=CAP_DAC_READ_SEARCH"]
    secret = f"{pythonic.state}/secret"
    with open(secret, "w") as file:
        file.write("the host's own")
    os.chmod(secret, 0o600)
    value = {"set": ["CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"]}
    app = {
        "exec": ["/usr/bin/python3", "-Ic", READER, *handle_of(secret)],
        "user": "0",
        "group": "0",
        "isolators": [{"name": capabilities, "value": value}],
    }
    (tmp_path / "root/etc").mkdir(parents=True)
    path = archive(
        str(tmp_path / "root"),
        str(tmp_path / "reader.aci"),
        "example.com/reader",
        app=app,
        dependencies=[{"imageName": "example.com/debian"}],
    )
    # There, other pods are found by name: /etc/hosts is a file of the host's, and not of the app's root.
    image = {"apps": [{"name": "main", "image": path}], "networks": ["default"]}
    before = pythonic.uuids()
    for template in (image, pythonic.template({"main": app})):
        with pytest.raises(PowerError) as caught:
            pythonic.client.prepare(pythonic.request({}, template=template))
        assert f"asks for {powers[0]}" in caught.value.message
        assert f"give --grant {powers[0]};" in caught.value.hint
        assert f"isolators: [{powers[0]}]" in caught.value.hint
    assert pythonic.uuids() == before
    with pythonic.running("sleep 1000") as pod:
        added = {"apps": [{"name": "later", "image": path}]}
        with pytest.raises(PowerError, match=r"app later: its image example\.com/reader asks for"):
            pythonic.client.app_add(pod.uuid, pythonic.request({}, template=added), start=True)
        record = pythonic.client.app_add(pod.uuid, pythonic.request({}, template=added, grants=tuple(powers)))
        note = "its image example.com/reader has {} by --grant".format
        assert f"app later: {note(*powers)}" in record.notes
    # Without the capabilities it is a program like any other: what it asks for is what opens the way.
    plain = {**app, "isolators": []}
    assert pythonic.run({"main": plain})[0].exit_code == 1
    record = pythonic.client.prepare(pythonic.request({}, template=image, grants=tuple(powers)))
    assert f"app main: {note(*powers)}" in record.notes
    for _ in range(2):
        assert pythonic.start(record.uuid)[1] == "the host's own\n"
    pythonic.client.rm(record.uuid)
    # What the caller types needs no grant.
    typed = AppOverrides(isolators=((capabilities, value),))
    record, output = pythonic.run({"main": plain}, net="default", overrides={"main": typed})
    assert output == "the host's own\n"
    assert f"app main: its image has {powers[0]} by the command line" in record.notes
