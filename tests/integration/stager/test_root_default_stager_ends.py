"""The default stager, alone: how apps and their handlers begin and end, and what is told of it (H4, H5)."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from kurma_core.errors import StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.isolator import CgroupSetting, IsolatorPlan
from kurma_core.models.pod import MountSetup
from kurma_core.staging.callin import StagerTimes
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

#: For an app that may have 24 MiB, and one process more than it has.
SMALL = IsolatorPlan(cgroup=(CgroupSetting("memory", "memory.limit_in_bytes", str(24 << 20)),))
#: Wants more than that, and touches it.
GREEDY = "dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null"


def handlers(**scripts: str) -> dict[str, object]:
    return {
        "eventHandlers": [
            {"name": name.replace("_", "-"), "exec": ["/bin/sh", "-c", script]} for name, script in scripts.items()
        ]
    }


def ending(pod, name="main"):
    app = pod.app(name)
    return app["exitCode"], app["exitReason"], app["signal"]


# --- handlers --------------------------------------------------------------------------------------------------


def test_handlers_are_held_as_the_app_is(pods):
    """H4: user, groups, environment, root, capabilities, limits, cgroup, namespaces: each as main has it."""
    script = """
        id -u; id -g; id -G; echo $A $AC_APP_NAME; pwd; cat /mark; ulimit -n
        grep -E '^Cap|NoNewPrivs' /proc/self/status; cat /proc/self/oom_score_adj
        cut -d: -f2- /proc/self/cgroup; for n in pid net ipc uts mnt; do readlink /proc/self/ns/$n; done
    """
    fields = {
        **handlers(
            pre_start=f"echo of-the-root > /tmp/m; ln -s /tmp/m /mark 2>/dev/null; ({script}) > /tmp/pre",
            post_stop=f"({script}) > /tmp/post; echo; for f in pre main post; do echo == $f; cat /tmp/$f; done",
        ),
        "user": "1000",
        "group": "100",
        "supplementaryGIDs": [7, 9],
        "workingDirectory": "/home/alice",
        "environment": [{"name": "A", "value": "b c"}],
    }
    plan = IsolatorPlan(
        capabilities=("CAP_CHOWN", "CAP_NET_BIND_SERVICE"),
        ambient=("CAP_NET_BIND_SERVICE",),
        no_new_privileges=True,
        oom_score_adj=123,
        rlimits={"nofile": (77, 88)},
    )
    pod = pods({"main": {**shell(f"({script}) > /tmp/main"), **fields}}, plans={"main": plan})
    assert pod.ended() == 0, pod.output()
    _, pre, main, post = pod.log(stream=b"stdout").split("== ")
    bodies = [part.partition("\n")[2].strip() for part in (pre, main, post)]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[0].split("\n")[:6] == ["1000", "100", "100 7 9", "b c main", "/home/alice", "77"]


@pytest.mark.parametrize(
    ("script", "ends", "stop"),
    [
        ("exit 0", (0, "exited", None), False),
        ("exit 9", (9, "exited", None), False),
        ("kill -SEGV $$", (139, "killed", 11), False),
        ("kill -KILL $$", (137, "killed", 9), False),
        ("echo up; exec sleep 1000", (143, "killed", 15), True),
        ("trap '' TERM; echo up; while :; do sleep 0.05; done", (137, "killed", 9), True),
    ],
)
def test_post_stop_runs_however_main_ended(pods, script, ends, stop):
    """H4; and how main ended is told by code, reason and signal (H5)."""
    pod = pods({"main": {**shell(script), **handlers(post_stop="echo after")}}, times=StagerTimes(stop=0.5))
    if stop:
        pod.started().wait_log("up")
        assert pod.stop() == 0
    else:
        assert pod.ended() == 0, pod.output()
    assert pod.log().endswith("after\n")
    assert ending(pod) == ends


def test_post_stop_runs_after_want_of_memory(pods):
    pod = pods({"main": {**shell(f"exec {GREEDY}"), **handlers(post_stop="echo after")}}, plans={"main": SMALL})
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "after\n"
    assert ending(pod) == (137, "oom", 9)


def test_post_stop_is_skipped_only_by_force(pods, tmp_path):
    """H4: what takes the pod down by force asks nobody."""
    pod = pods(
        {"main": {**shell("echo up; exec sleep 1000"), **handlers(post_stop="echo after > /v/after")}},
        volumes={"v": str(tmp_path)},
        mounts={"main": [MountSetup("v", "/v", False, False)]},
    ).started()
    pod.wait_log("up")
    pod.stager.stop(pod.directory, pod.process, force=True)
    assert pod.ended() == 137
    assert not (tmp_path / "after").exists()


def test_a_post_stop_that_fails_is_told_and_changes_nothing(pods):
    pod = pods({"main": {**shell("exit 0"), **handlers(post_stop="exit 7")}})
    assert pod.ended() == 0
    assert ending(pod) == (0, "exited", None)
    assert "app main: its post-stop handler exited with status 7" in pod.document()["notes"]


def test_a_post_stop_that_is_not_there_is_told(pods):
    gone = {"eventHandlers": [{"name": "post-stop", "exec": ["/no/such"]}]}
    pod = pods({"main": {**shell("exit 0"), **gone}})
    assert pod.ended() == 0
    assert "app main: its post-stop handler cannot be run: /no/such: not found" in pod.document()["notes"]


def test_a_pre_start_that_hangs_is_bounded(pods):
    """It must succeed in its time; what it has started ends with it."""
    slow = handlers(pre_start="(trap '' TERM HUP; while :; do sleep 0.1; done) & sleep 1000")
    pod = pods({"main": {**shell("echo main"), **slow}}, config={"handlerTimeout": 0.3})
    with pytest.raises(StagerError, match="its pre-start handler was ended by signal 9"):
        pod.started()
    assert pod.log() == ""
    assert CgroupTree(pod.setup.cgroup).pids() == []


def test_a_stop_while_a_post_stop_handler_runs_bounds_it(pods):
    """G7: a handler has no more time than an app, once the pod is asked to stop."""
    pod = pods(
        {
            "main": {**shell("exit 5"), **handlers(post_stop="echo handling; exec sleep 1000")},
            "other": shell("sleep 1000"),
        },
        times=StagerTimes(stop=0.5),
    ).started()
    pod.wait_log("handling")
    began = time.monotonic()
    assert pod.stop() == 0
    assert time.monotonic() - began < 5
    assert ending(pod) == (5, "exited", None)
    assert any("post-stop handler took too long" in note for note in pod.document()["notes"])


def test_a_stop_while_a_pre_start_handler_runs(pods):
    """Main is not started any more, and the stager says that it was asked."""
    pod = pods({"main": {**shell("echo main"), **handlers(pre_start="echo handling; exec sleep 1000")}})
    pod.wait_log("handling")
    assert pod.stop() == 0
    assert pod.log() == "handling\n"
    assert (pod.app()["exitCode"], pod.app()["message"]) == (137, "stopped before it had started")


def test_leftovers_are_gone_before_post_stop(pods):
    """H4: hundreds of processes, which main has left, do not meet the handler, nor take its place in the limit."""
    limit = IsolatorPlan(cgroup=(CgroupSetting("pids", "pids.max", "200"),))
    main = "i=0; while [ $i -lt 180 ]; do sleep 1000 & i=$((i+1)); done; exit 3"
    after = handlers(
        post_stop="echo left $(ps | grep -c '[s]leep 1000'); for i in 1 2 3; do (true &); done; echo ok"
    )
    pod = pods({"main": {**shell(main), **after}}, plans={"main": limit})
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "left 0\nok\n"


def test_what_a_handler_leaves_behind_ends_before_the_next_start(pods, tmp_path):
    """H3: nothing of one execution is seen in the next."""
    script = "echo x >> /v/n; ps | grep -c '[s]leep 1111' >> /v/seen; [ $(wc -l < /v/n) = 3 ]"
    pod = pods(
        {"main": {**shell(script), **handlers(post_stop="trap '' HUP; sleep 1111 & exit 0")}},
        app_annotations={"kurma.io/restart": "on-failure"},
        volumes={"v": str(tmp_path)},
        mounts={"main": [MountSetup("v", "/v", False, False)]},
    )
    assert pod.ended() == 0, pod.output()
    assert (tmp_path / "seen").read_text() == "0\n0\n0\n"


# --- ends ------------------------------------------------------------------------------------------------------


def test_a_child_that_wants_too_much_memory(pods):
    """H5: main goes on and ends by itself: told as that, with what happened."""
    pod = pods({"main": shell(f"{GREEDY}; echo child $?; exit 4")}, plans={"main": SMALL})
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "child 137\n"
    assert ending(pod) == (4, "exited", None)
    assert pod.app()["message"] == "killed for want of memory: 1 of its processes"


def test_a_shell_that_passes_on_its_childs_end(pods):
    pod = pods({"main": shell(f"{GREEDY}; exit $?")}, plans={"main": SMALL})
    assert pod.ended() == 0, pod.output()
    assert ending(pod) == (137, "oom", None)


@pytest.mark.full
def test_a_kill_is_no_want_of_memory(pods):
    """H5: also where a child has wanted too much long before; and without any limit."""
    pod = pods(
        {
            "before": shell(f"{GREEDY}; echo outlived; exec sleep 1000"),
            "never": shell("echo up; exec sleep 1000"),
        },
        plans={"before": SMALL, "never": SMALL},
    ).started()
    pod.wait_log("outlived", "before.log")
    pod.wait_log("up", "never.log")
    time.sleep(5.5)  # for so long, an end by SIGKILL counts as the same want of memory
    for name in ("before", "never"):
        os.kill(pod.app(name)["pid"], signal.SIGKILL)
    assert pod.ended() == 0
    assert ending(pod, "before") == ending(pod, "never") == (137, "killed", 9)


def test_want_of_memory_and_again(pods, tmp_path):
    """H5: the first execution wants too much, the second one is killed: each is told for what it was."""
    script = f"echo x >> /v/n; case $(wc -l < /v/n) in 1) exec {GREEDY};; 2) kill -9 $$;; esac; exit 0"
    pod = pods(
        {"main": shell(script)},
        plans={"main": SMALL},
        app_annotations={"kurma.io/restart": "on-failure"},
        volumes={"v": str(tmp_path)},
        mounts={"main": [MountSetup("v", "/v", False, False)]},
    )
    assert pod.ended() == 0, pod.output()
    assert [(one["exitCode"], one["exitReason"], one["signal"]) for one in pod.app()["earlier"]] == [
        (137, "oom", 9),
        (137, "killed", 9),
    ]
    assert ending(pod) == (0, "exited", None)


# --- starts that fail ------------------------------------------------------------------------------------------


@pytest.fixture
def odd_programs(tmp_path):
    """A layer of programs, each wrong in its own way."""
    layer = tmp_path / "odd"
    layer.mkdir()
    elf = bytearray(Path("/bin/busybox").read_bytes()[:4096])
    elf[18:20] = (183 if os.uname().machine != "aarch64" else 62).to_bytes(2, "little")
    contents = {
        "plain": (b"echo hi\n", 0o644),
        "script": (b"#!/no/such/interpreter -x\n", 0o755),
        "elsewhere": (bytes(elf), 0o755),
        "empty": (b"", 0o755),
        "text": (b"neither this nor that\n", 0o755),
    }
    for name, (content, mode) in contents.items():
        (layer / name).write_bytes(content)
        (layer / name).chmod(mode)
    return str(layer)


@pytest.mark.parametrize(
    ("app", "code", "said"),
    [
        ({"exec": ["/no/such"]}, 127, "/no/such: not found"),
        ({"exec": ["no-such"]}, 127, "no-such: not found in "),
        ({"exec": ["/plain"]}, 126, "/plain: is not executable (mode 0644)"),
        ({"exec": ["/script"]}, 126, "/script: the script's interpreter /no/such/interpreter is missing"),
        ({"exec": ["/elsewhere"]}, 126, "/elsewhere: is built for "),
        ({"exec": ["/empty"]}, 126, "/empty: is empty"),
        ({"exec": ["/text"]}, 126, "/text: is neither an ELF program nor a script"),
        ({"exec": ["/bin"]}, 126, "/bin: is a directory"),
    ],
)
def test_a_program_that_cannot_be_started(pods, odd_programs, busybox_root, app, code, said):
    """H5: ``start-failed``, with the shell's codes and the reason; an app beside it is not harmed."""
    pod = pods(
        {"main": {"user": "0", "group": "0", **app}, "other": shell("sleep 0.1; exit 0")},
        roots=[odd_programs, busybox_root],
    )
    assert pod.ended() == 0, pod.output()
    assert ending(pod) == (code, "start-failed", None)
    assert pod.app()["message"].startswith(said)
    assert pod.app()["startedAt"] is None
    assert ending(pod, "other") == (0, "exited", None)


@pytest.mark.parametrize("code", [125, 126, 127])
def test_an_exit_with_such_a_code_is_an_exit(pods, code):
    pod = pods({"main": shell(f"exit {code}")})
    assert pod.ended() == 0
    assert ending(pod) == (code, "exited", None)
    assert "message" not in pod.app()
    assert pod.app()["startedAt"] is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"user": "nobody-there"}, "nobody-there"),
        ({"group": "no-group"}, "no-group"),
        ({"workingDirectory": "/no/where"}, "the working directory /no/where does not exist"),
    ],
)
def test_a_set_up_that_fails(pods, fields, said):
    """H5: 125, and the pod's start has failed, in one line."""
    pod = pods({"main": shell("echo main", **fields), "other": shell("sleep 1000")})
    with pytest.raises(StagerError) as caught:
        pod.started()
    assert said in str(caught.value)
    assert "app main: " in str(caught.value)
    assert ending(pod) == (125, "start-failed", None)
    assert said in pod.app()["message"]
    assert CgroupTree(pod.setup.cgroup).pids() == []


# --- restarts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "script", "runs"),
    [
        ("never", "exit 3", 1),
        ("never", "exit 0", 1),
        ("on-failure", "exit 0", 1),
        ("on-failure", "[ $(wc -l < /v/n) = 2 ]", 2),
        ("on-failure", "[ $(wc -l < /v/n) = 2 ] || kill -9 $$", 2),
    ],
)
def test_restart_policies(pods, tmp_path, policy, script, runs):
    pod = pods(
        {"main": shell(f"echo x >> /v/n; {script}")},
        app_annotations={"kurma.io/restart": policy},
        volumes={"v": str(tmp_path)},
        mounts={"main": [MountSetup("v", "/v", False, False)]},
    )
    assert pod.ended() == 0, pod.output()
    assert len((tmp_path / "n").read_text().split()) == runs
    assert pod.app()["restarts"] == runs - 1


def test_pauses_grow(pods):
    """H5: about 0.1, 0.2, 0.4 s between the end of one execution and the start of the next."""
    pod = pods({"main": shell("exit 1")}, app_annotations={"kurma.io/restart": "always"}).started()
    until(lambda: pod.app()["restarts"] >= 4, "four restarts")
    assert pod.stop() == 0
    marks = pod.app()["earlier"][:4]
    pauses = [_seconds(later["startedAt"]) - _seconds(earlier["finishedAt"]) for earlier, later in pairwise(marks)]
    for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True):
        assert least <= pause < 2 * least + 1


def _seconds(text):
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def test_a_program_that_is_not_there_is_not_tried_again(pods):
    pod = pods(
        {"main": {"exec": ["/no/such"], "user": "0", "group": "0"}}, app_annotations={"kurma.io/restart": "always"}
    )
    assert pod.ended() == 0
    assert pod.app()["restarts"] == 0


@pytest.mark.full
def test_a_restart_that_cannot_be_set_up_is_tried_again(pods, tmp_path):
    """H5: what has run before, and cannot be set up for now, is started once it can."""
    script = "echo x >> /v/n; while [ ! -e /v/go ]; do sleep 0.02; done; [ $(wc -l < /v/n) = 2 ]"
    pod = pods(
        {"main": shell(script), "other": shell("exec sleep 1000")},
        app_annotations={"kurma.io/restart": "on-failure"},
        volumes={"v": str(tmp_path)},
        mounts={"main": [MountSetup("v", "/v", False, False)]},
    ).started()
    place = f"{pod.directory}/pod/apps/main"
    os.rename(place, f"{place}.aside")
    Path(place).touch()  # in the way of every next execution
    (tmp_path / "go").touch()
    until(lambda: pod.app()["restarts"] >= 2, "two starts")
    failed = pod.app()["earlier"][-1]
    assert (failed["exitCode"], failed["exitReason"]) == (125, "start-failed")
    os.unlink(place)
    until(lambda: pod.app().get("exitCode") == 0, "the second execution")
    assert pod.stop() == 0
    assert len((tmp_path / "n").read_text().split()) == 2


# --- the pod's end ---------------------------------------------------------------------------------------------


def test_all_waits_for_the_last(pods):
    pod = pods(
        {"short": shell("exit 5"), "long": shell("sleep 0.5; exit 0")}, annotations={"kurma.io/lifecycle": "all"}
    )
    assert pod.ended() == 0
    assert (ending(pod, "short"), ending(pod, "long")) == ((5, "exited", None), (0, "exited", None))


def test_any_waits_for_the_first_that_is_not_restarted(pods, tmp_path):
    """H5: an app that is started again has not ended."""
    pod = pods(
        {"main": shell("echo x >> /v/n; [ $(wc -l < /v/n) = 3 ]"), "other": shell("exec sleep 1000")},
        annotations={"kurma.io/lifecycle": "any"},
        app_annotations={"kurma.io/restart": "on-failure"},
        volumes={"v": str(tmp_path)},
        mounts={"main": [MountSetup("v", "/v", False, False)]},
    )
    assert pod.ended() == 0
    assert (pod.app()["restarts"], ending(pod)) == (2, (0, "exited", None))
    assert ending(pod, "other") == (143, "killed", 15)
