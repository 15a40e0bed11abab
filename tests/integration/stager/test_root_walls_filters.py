"""A plan's filter of system calls: put on last, for whatever runs in the app, with no right left over (H4, X4)."""

import errno
import os

import pytest
from kurma_stager_default.inside.app import sandbox

from kurma_core.models.isolator import IsolatorPlan
from tests.kit.images import shell

pytestmark = pytest.mark.root

MKDIR = {"x86_64": (83, 258), "aarch64": (34, 34)}[os.uname().machine]
EXECVE = {"x86_64": 59, "aarch64": 221}[os.uname().machine]
PRIVILEGED = ("CAP_NET_BIND_SERVICE", "CAP_CHOWN")


def refusing(*calls, answer=0x00050000 | errno.EXDEV):
    """A program that answers these calls with an error, all others with leave."""
    load, equal, leave = 0x20, 0x15, 0x06
    parts = [sandbox.instruction(load, 0)]
    for number in calls:
        parts += [sandbox.instruction(equal, number, 0, 1), sandbox.instruction(leave, answer)]
    return b"".join([*parts, sandbox.instruction(leave, 0x7FFF0000)])


def handler(name, script):
    return {"name": name, "exec": ["/bin/sh", "-c", script]}


STATUS = "grep -e ^Cap -e ^NoNewPrivs /proc/self/status"


@pytest.mark.parametrize("user", ["0", "1000"])
def test_it_holds_for_all_that_runs_in_the_app(pods, user):
    """Main, both handlers and a command run later are refused the call; an app without the filter is not."""
    mkdir = "mkdir /tmp/$0 2>&1 || :"
    app = shell(f"{mkdir}; echo up; sleep 1000 & wait", user=user)
    app["eventHandlers"] = [handler("pre-start", mkdir), handler("post-stop", mkdir)]
    plans = {"main": IsolatorPlan(seccomp=refusing(*MKDIR))}
    pod = pods({"main": app, "free": shell("mkdir /tmp/free && echo made")}, plans=plans).started()
    refused = "mkdir: can't create directory '/tmp/{}': Invalid cross-device link\n".format
    pod.wait_log("up")
    code, out, _ = pod.run("sh", "-c", mkdir)
    assert (code, out) == (0, refused("sh"))
    assert pod.stop() == 0
    assert pod.log() == refused("/bin/sh") * 2 + "up\n" + refused("/bin/sh")
    assert pod.log("free.log") == "made\n"


@pytest.mark.parametrize("user", ["0", "1000"])
@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"no_new_privileges": True},
        {"capabilities": PRIVILEGED, "ambient": PRIVILEGED},
        {"capabilities": PRIVILEGED, "ambient": PRIVILEGED[:1]},
        {"capabilities": (*PRIVILEGED, "CAP_SYS_ADMIN")},
    ],
    ids=["plain", "no new privileges", "ambient", "some ambient", "may mount"],
)
def test_rights_are_the_same_with_a_filter(pods, plan, user):
    """What it takes to put the filter on does not outlive the exec, in no set, for main and for ``run`` alike."""
    app = shell(f"{STATUS}; echo end; sleep 1000", user=user)
    plans = {"with": IsolatorPlan(**plan, seccomp=refusing(*MKDIR)), "without": IsolatorPlan(**plan)}
    pod = pods({"with": app, "without": app}, plans=plans).started()
    seen = [pod.wait_log("end", f"{name}.log") for name in plans]
    seen += [pod.run("sh", "-c", f"{STATUS}; echo end", app=name)[1] for name in plans]
    assert seen[0].count("\n") == 7
    assert seen == seen[:1] * 4


def test_set_user_id_still_works_with_a_filter(pods, busybox_root, tmp_path):
    """No new privileges is for who asks for it: a filter alone does not bring it."""
    layer = tmp_path / "layer"
    (layer / "suid").mkdir(parents=True)
    with open(f"{busybox_root}/bin/busybox", "rb") as file:
        (layer / "suid" / "busybox").write_bytes(file.read())
    (layer / "suid" / "busybox").chmod(0o4755)
    (layer / "etc").mkdir()
    (layer / "etc" / "passwd").write_text("root::0:0:root:/:/bin/sh\nalice:x:1000:100::/:/bin/sh\n")
    app = shell("/suid/busybox su -c 'id -u; mkdir /tmp/x 2>&1 | grep -o cross' root", user="1000", group="100")
    plans = {"main": IsolatorPlan(seccomp=refusing(*MKDIR))}
    pod = pods({"main": app}, roots=[str(layer), busybox_root], plans=plans)
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "0\ncross\n"


def test_one_that_the_kernel_refuses_fails_the_start(pods):
    """Nothing runs without it."""
    pod = pods({"main": shell("echo ran")}, plans={"main": IsolatorPlan(seccomp=b"\xff" * 16)})
    assert pod.ended() == 1
    assert "app main: " in pod.output()
    assert "cannot install the system call filter: Invalid argument" in pod.output()
    assert pod.log() == ""


def test_one_that_refuses_execution_is_told(pods):
    pod = pods({"main": shell("true")}, plans={"main": IsolatorPlan(seccomp=refusing(EXECVE))})
    assert pod.ended() == 0
    app = pod.app()
    assert (app["exitCode"], app["exitReason"]) == (126, "start-failed")
    assert app["message"].endswith("/bin/sh: invalid cross-device link")


def test_one_that_kills_kills(pods):
    """No errno: SIGSYS."""
    killing = refusing(*MKDIR, answer=0x80000000)
    pod = pods(
        {"main": shell("mkdir /tmp/a; echo $?; exec mkdir /tmp/b")}, plans={"main": IsolatorPlan(seccomp=killing)}
    )
    assert pod.ended() == 0
    assert (pod.app()["exitCode"], pod.app()["exitReason"]) == (128 + 31, "killed")
