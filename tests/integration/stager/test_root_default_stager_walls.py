"""What an app may try against the host and the stager, as root with its usual capabilities."""

import os
import stat
import sys

import pytest
from kurma_stager_default import compiling
from kurma_stager_default.inside.app import privileges

from kurma_core.linux import libc
from kurma_core.models.pod import MountSetup
from tests.kit.images import shell

pytestmark = pytest.mark.root

_KEYCTL_JOIN_SESSION_KEYRING = 1
_KEYCTL_UNLINK = 9
_KEYCTL_SEARCH = 10
_SESSION_KEYRING = -3
_USER_KEYRING = -4
_ADD_KEY = {"x86_64": 248, "aarch64": 217}


def test_the_hosts_device_nodes_keep_their_looks(pods):
    """H11: the nodes in an app's /dev are the host's own: owner and mode are not the app's to change."""
    nodes = ("null", "zero", "full", "random", "urandom", "tty")
    before = {name: os.stat(f"/dev/{name}") for name in nodes}
    script = "".join(
        f"chmod 0600 /dev/{name} || echo refused; chown 12:34 /dev/{name} || echo refused\n" for name in nodes
    )
    pod = pods({"main": shell(script + "echo x > /dev/null && echo x >> /dev/zero && echo written")})
    try:
        assert pod.ended() == 0
        assert pod.log(stream=b"stdout") == "refused\n" * 12 + "written\n"
        for name, status in before.items():
            after = os.stat(f"/dev/{name}")
            assert (after.st_mode, after.st_uid, after.st_gid) == (status.st_mode, status.st_uid, status.st_gid)
    finally:
        for name, status in before.items():
            os.chown(f"/dev/{name}", status.st_uid, status.st_gid)
            os.chmod(f"/dev/{name}", stat.S_IMODE(status.st_mode))


@pytest.mark.parametrize("place", ["proc", "sys", "dev"])
@pytest.mark.parametrize(
    ("to", "what"),
    [
        ("/dev/shm/x", "symbolic link"),
        ("../..", "symbolic link"),
        ("/proc/1/root", "symbolic link"),
        (None, "file"),
    ],
)
def test_the_systems_places_are_no_links(pods, busybox_root, tmp_path, place, to, what):
    """H11: an app could point such a link elsewhere, and /dev/shm holds what an earlier execution left there."""
    (tmp_path / "layer").mkdir()
    if to is None:
        (tmp_path / "layer" / place).write_text("")
    else:
        (tmp_path / "layer" / place).symlink_to(to)
    pod = pods({"main": shell("true")}, roots=[str(tmp_path / "layer"), busybox_root])
    assert pod.ended() == 1
    reason = f"cannot make its root filesystem: /{place}: the image has a {what} there; make it a directory"
    assert pod.output() == f"app main: {reason}\n"


@pytest.mark.parametrize("place", ["/dev/null", "/dev/pts", "/dev/pts/x", "/dev/console", "/dev/link/null"])
def test_what_the_stager_has_made_in_dev_is_no_place_for_a_volume(pods, busybox_root, tmp_path, place):
    (tmp_path / "source").mkdir()
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "link").symlink_to("dev")
    place = place.replace("/dev/link", "/link")
    pod = pods(
        {"main": shell("true")},
        roots=[str(tmp_path / "layer"), busybox_root],
        volumes={"v": str(tmp_path / "source")},
        mounts={"main": [MountSetup("v", place, False, False)]},
    )
    assert pod.ended() == 1
    assert pod.output().startswith(f"app main: volume v: cannot be mounted at {place}: ")
    assert len(pod.output().splitlines()) == 1


@pytest.fixture
def caller_key():
    """A key in the session keyring of who starts pods; what follows in this process has another keyring again."""
    libc.syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)
    libc.syscall(_ADD_KEY[os.uname().machine], b"user", b"kurma-test", b"secret", 6, _SESSION_KEYRING)
    yield
    libc.syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)


@pytest.fixture
def users_key():
    """A key in the keyring of this machine's user 0."""
    key = libc.syscall(_ADD_KEY[os.uname().machine], b"user", b"kurma-test-0", b"secret", 6, _USER_KEYRING)
    yield
    libc.syscall("keyctl", _KEYCTL_UNLINK, key, _USER_KEYRING)


def found(keyring, name):
    try:
        return libc.syscall("keyctl", _KEYCTL_SEARCH, keyring, b"user", name, 0) > 0
    except OSError as error:
        return error.strerror


def test_the_session_keyring_is_left_behind(caller_key):
    """What a file system or the kernel itself looks for on an app's behalf is not found with the caller's keys."""
    assert found(_SESSION_KEYRING, b"kurma-test") is True
    pid = os.fork()
    if pid == 0:
        privileges._leave_keyring()
        os._exit(found(_SESSION_KEYRING, b"kurma-test") != "Required key not available")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


_CALL_ON_KEYS = f"""
from kurma_core.linux import libc
for number, words in (
    ({{keyctl}}, ({_KEYCTL_SEARCH}, {_SESSION_KEYRING}, b"user", b"kurma-test", 0)),
    ({{keyctl}}, ({_KEYCTL_SEARCH}, {_USER_KEYRING}, b"user", b"kurma-test-0", 0)),
    ({{keyctl}} | {{x32}}, ({_KEYCTL_SEARCH}, {_USER_KEYRING}, b"user", b"kurma-test-0", 0)),
    ({{add_key}}, (b"user", b"kurma-test-1", b"x", 1, {_SESSION_KEYRING})),
    ({{request_key}}, (b"user", b"kurma-test-0", None, 0)),
):
    try:
        print(libc.syscall(number, *words))
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.parametrize("user", ["0", "1000"])
def test_keys_of_the_host_stay_its_own(caller_key, users_key, pods, stager_tree, user, tmp_path):
    """H2: root in an app has the number of the host's root, and none of its keys; a command run later neither."""
    assert found(_SESSION_KEYRING, b"kurma-test") is found(_USER_KEYRING, b"kurma-test-0") is True
    machine = os.uname().machine
    script = _CALL_ON_KEYS.format(
        keyctl=libc.NUMBERS["keyctl"],
        add_key=_ADD_KEY[machine],
        request_key=_ADD_KEY[machine] + 1,
        x32=0x40000000 if machine == "x86_64" else 0,
    )
    # The stager's own image has a Python, and with this a way to make any system call.
    library = f"opt/stager/lib/python{sys.version_info.major}.{sys.version_info.minor}"
    code = compile(compiling.lean(libc.__file__), "libc.py", "exec")
    compiling.write(f"{tmp_path}/layer/{library}/kurma_core/linux/libc.pyc", code)
    python = ["/opt/stager/bin/python3", "-IuS", "-c"]
    app = {"exec": [*python, script + "import time; time.sleep(1000)"], "user": user, "group": user}
    pod = pods({"main": app}, roots=[f"{tmp_path}/layer", stager_tree.path])
    refused = "Operation not permitted\n" * 5
    assert pod.wait_log(refused) == refused
    assert pod.run(*python, script) == (0, refused, "")
    assert "keys: each app has a session keyring of its own, and may not call on others" in pod.document()["notes"]


def test_a_command_in_an_app_has_a_session_of_its_own(pods):
    """The caller's terminal does not become the command's, which could put words into its mouth (TIOCSTI)."""
    pod = pods({"main": shell("echo up; exec sleep 1000")}).started()
    pod.wait_log("up")
    code, out, _ = pod.run("cat", "/proc/self/stat")
    pid, session = out.split()[0], out.split()[5]
    assert (code, session) == (0, pid)


OVERWRITE = """
import os
for change in (
    lambda: os.open("/proc/self/exe", os.O_WRONLY),
    lambda: os.truncate("/proc/self/exe", 0),
    lambda: os.chmod("/proc/self/exe", 0o644),
    lambda: os.chown("/proc/self/exe", 1, 1),
):
    try:
        change()
        print("changed", flush=True)
    except OSError as error:
        print(error.errno in (30, 26), flush=True)
print(os.readlink("/proc/self/exe"), flush=True)
"""


def test_the_stagers_own_program_is_not_to_be_changed(pods, stager_tree, busybox_root, tmp_path):
    """An image that has the stager's program executed once more, by the link to it, cannot write to that."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "script").write_text("#!/proc/self/exe -uS\n" + OVERWRITE)
    (layer / "script").chmod(0o755)
    # The libraries that it needs are the image's own to give.
    app = {"exec": ["/proc/self/exe", "-uS", "-c", OVERWRITE + "import time; time.sleep(1000)"]}
    app |= {"user": "0", "group": "0", "environment": [{"name": "PYTHONHOME", "value": "/opt/stager"}]}
    file = f"{stager_tree.path}/opt/stager/bin/python3"
    before = os.stat(file)
    pod = pods({"main": app}, roots=[str(layer), stager_tree.path, busybox_root]).started()
    expected = "True\n" * 4 + "/opt/stager/bin/python3\n"
    assert pod.wait_log("/opt") == expected
    assert pod.run("/script")[:2] == (0, expected)
    # And it is still the same, also as the stager sees it.
    assert pod.run("/bin/echo", "well")[:2] == (0, "well\n")
    for path in (file, f"/proc/{pod.process.pid}/root/opt/stager/bin/python3"):
        after = os.stat(path)
        assert (after.st_size, after.st_mode, after.st_uid, after.st_ctime_ns) == (
            (before.st_size, before.st_mode, before.st_uid, before.st_ctime_ns)
        )
