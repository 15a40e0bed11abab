"""What an app may try against the host and the stager, as root with its usual capabilities."""

import os
import stat

import pytest

from kurma_core.linux import libc

pytestmark = pytest.mark.root

_KEYCTL_JOIN_SESSION_KEYRING = 1
_KEYCTL_SEARCH = 10
_SESSION_KEYRING = -3
_ADD_KEY = {"x86_64": 248, "aarch64": 217}


def sh(script, **fields):
    return {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0", **fields}


def test_the_hosts_device_nodes_keep_their_looks(pods):
    """H11: the nodes in an app's /dev are the host's own: owner and mode are not the app's to change."""
    nodes = ("null", "zero", "full", "random", "urandom", "tty")
    before = {name: os.stat(f"/dev/{name}") for name in nodes}
    script = "".join(
        f"chmod 0600 /dev/{name} || echo refused; chown 12:34 /dev/{name} || echo refused\n" for name in nodes
    )
    pod = pods({"main": sh(script + "echo x > /dev/null && echo x >> /dev/zero && echo written")})
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


def test_links_for_proc_and_sys_unmask_nothing(pods, busybox_root, tmp_path):
    """H11: where an image has links for /proc and /sys, what they lead to is masked and read-only as well."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "proc").symlink_to("/elsewhere/proc")
    (layer / "sys").symlink_to("../elsewhere/sys")
    script = """
        cd /elsewhere/proc
        for file in kcore keys timer_list; do [ ! -e $file ] || wc -c < $file; done | sort -u
        ls /elsewhere/proc/acpi /elsewhere/sys/firmware 2>/dev/null | grep -v : | wc -w
        echo 1 > /elsewhere/proc/sys/kernel/panic || echo refused
        echo 1 > /elsewhere/sys/kernel/mm/transparent_hugepage/defrag || echo refused
        cat /proc/self/comm
    """
    pod = pods({"main": sh(script)}, roots=[str(layer), busybox_root])
    assert pod.ended() == 0, pod.output()
    assert pod.log(stream=b"stdout").split() == ["0", "0", "refused", "refused", "cat"]


@pytest.fixture
def caller_key():
    """A key in the session keyring of who starts pods; what follows in this process has another keyring again."""
    libc.syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)
    libc.syscall(_ADD_KEY[os.uname().machine], b"user", b"kurma-test", b"secret", 6, _SESSION_KEYRING)
    yield
    libc.syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)


_LOOK_FOR_THE_KEY = f"""
from kurma_core.linux import libc
try:
    libc.syscall("keyctl", {_KEYCTL_SEARCH}, {_SESSION_KEYRING}, b"user", b"kurma-test", 0)
    print("found")
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("user", ["0", "1000"])
def test_keys_of_who_starts_a_pod_stay_its_own(caller_key, pods, stager_tree, user):
    """An app, and a command run in it later, has a session keyring of its own."""
    assert libc.syscall("keyctl", _KEYCTL_SEARCH, _SESSION_KEYRING, b"user", b"kurma-test", 0) > 0
    # The stager's own image has a Python that can make any system call.
    python = ["/opt/stager/bin/python3", "-IuS", "-c"]
    script = _LOOK_FOR_THE_KEY + "import time; time.sleep(1000)"
    app = {"exec": [*python, script], "user": user, "group": user}
    pod = pods({"main": app}, roots=[stager_tree.path])
    assert pod.wait_log("\n") == "Required key not available\n"
    assert pod.run(*python, _LOOK_FOR_THE_KEY) == (0, "Required key not available\n", "")


def test_a_command_in_an_app_has_a_session_of_its_own(pods):
    """The caller's terminal does not become the command's, which could put words into its mouth (TIOCSTI)."""
    pod = pods({"main": sh("echo up; exec sleep 1000")}).started()
    pod.wait_log("up")
    code, out, _ = pod.run("cat", "/proc/self/stat")
    pid, session = out.split()[0], out.split()[5]
    assert (code, session) == (0, pid)
