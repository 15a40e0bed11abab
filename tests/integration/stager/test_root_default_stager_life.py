"""The default stager, alone: the life of a pod. Stop, handlers, restarts, logs, commands run in an app, PID 1."""

from __future__ import annotations

import os
import signal
import time

import pytest

from kurma_core.errors import StagerError
from kurma_core.linux.cgroups import Layout
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.models.pod import MountSetup
from kurma_core.staging.callin import StagerTimes
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def handlers(**scripts: str) -> dict[str, object]:
    return {
        "eventHandlers": [
            {"name": name.replace("_", "-"), "exec": ["/bin/sh", "-c", script]} for name, script in scripts.items()
        ]
    }


# --- stop ------------------------------------------------------------------------------------------------------


def test_stop_asks_first(pods):
    """G7: SIGTERM to each app; the stager ends with 0."""
    script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done"
    pod = pods({"one": shell(script), "two": shell("echo up; exec sleep 1000")}).started()
    pod.wait_log("up", "one.log")
    pod.wait_log("up", "two.log")
    assert pod.stop() == 0
    assert pod.log("one.log") == "up\nbye\n"
    assert (pod.app("one")["exitCode"], pod.app("one")["exitReason"]) == (3, "exited")
    assert (pod.app("two")["exitCode"], pod.app("two")["exitReason"]) == (143, "killed")


def test_stop_insists(pods):
    """G7: what ignores SIGTERM is killed when its time is over, with all that it has started."""
    pod = pods(
        {"main": shell("trap '' TERM; (while :; do sleep 0.1; done) & echo up; while :; do sleep 0.1; done")},
        times=StagerTimes(stop=0.5),
    ).started()
    pod.wait_log("up")
    began = time.monotonic()
    assert pod.stop() == 0
    assert 0.5 <= time.monotonic() - began < 5
    assert (pod.app()["exitCode"], pod.app()["exitReason"]) == (137, "killed")


def test_leftovers_end_with_the_main_process(pods):
    """What an app's main process leaves running does not keep the pod alive, nor does it outlive the app."""
    pod = pods(
        {"main": shell("(trap '' TERM HUP; while :; do sleep 0.1; done) & exit 7"), "other": shell("sleep 1000")}
    )
    pod.started()
    until(lambda: pod.app()["exited"])
    assert pod.app()["exitCode"] == 7
    code, out, _ = pod.run("ps", "-o", "comm,args", app="other")
    assert code == 0
    assert "while :" not in out


@pytest.mark.full
def test_the_stagers_end_is_the_pods(pods):
    """H2: with the stager, PID 1 goes, and with PID 1 all processes of the pod."""
    pod = pods({"main": shell("echo up; exec sleep 1000")}).started()
    pod.wait_log("up")
    pid = pod.app()["pid"]
    pod.process.signal(signal.SIGKILL)
    assert pod.ended() == 137
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert not os.path.exists(f"/proc/{pid}")


# --- PID 1 -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_pid_1_reaps_orphans_and_stays_small(pods):
    """H2: a thousand orphans, no zombie left, PID 1 as large as before."""
    script = """
        orphans() { i=0; while [ $i -lt $1 ]; do (/bin/true &) ; i=$((i+1)); done; sleep 0.5; }
        orphans 100
        before=$(awk '/VmRSS/ {print $2}' /proc/1/status)
        orphans 1000
        after=$(awk '/VmRSS/ {print $2}' /proc/1/status)
        echo zombies $(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l)
        echo grown $((after - before))
    """
    pod = pods({"main": shell(script)})
    assert pod.ended(60) == 0
    found = dict(line.split() for line in pod.log().splitlines())
    assert found["zombies"] == "0"
    assert int(found["grown"]) <= 16


@pytest.mark.parametrize("mounts", [False, True])
def test_pid_1_gives_nothing_away(pods, mounts):
    """H2: no root, no capability, no descriptor, no memory to be had of PID 1, as root of the app.

    Nor where the app has no Landlock domain, since it may mount; newer kernels show such an app all environments.
    """
    environ = "" if mounts else "cat /proc/1/environ 2>/dev/null | grep . && echo environ"
    script = f"""
        ls /proc/1/root/ 2>/dev/null && echo root
        {environ}
        readlink /proc/1/fd/* /proc/1/exe /proc/1/cwd && echo descriptors
        head -c 1 /proc/1/mem 2>/dev/null && echo memory
        awk '/CapPrm|CapBnd/ {{print $2}}' /proc/1/status
        kill -9 1; kill -SEGV 1; sleep 0.1; kill -0 1 && echo alive
    """
    plan = IsolatorPlan(capabilities=("CAP_SYS_ADMIN", "CAP_KILL")) if mounts else IsolatorPlan()
    pod = pods({"main": shell(script)}, plans={"main": plan})
    assert pod.ended() == 0
    assert pod.log(stream=b"stdout").split() == ["0000000000000000", "0000000000000000", "alive"]


def test_pid_1_is_reaped_by_the_stager(pods):
    """Nothing is left to whoever reaps orphans on the host."""
    pod = pods({"main": shell("echo up; exec sleep 1000")}).started()
    pod.wait_log("up")
    with open(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children") as file:
        children = [int(word) for word in file.read().split()]
    assert len(children) == 2
    assert pod.stop() == 0
    assert [pid for pid in children if os.path.exists(f"/proc/{pid}")] == []


def test_pid_1_passes_a_request_to_end_on(pods):
    pod = pods({"main": shell("trap 'echo asked; exit 0' TERM; kill -TERM 1; while :; do sleep 0.1; done")})
    assert pod.ended() == 0
    assert pod.log() == "asked\n"


# --- isolation -------------------------------------------------------------------------------------------------


def test_apps_do_not_reach_each_other(pods):
    """H2: same user, same capabilities, one PID namespace; yet no root, memory, environment or descriptor."""
    secret = shell("echo secret > /secret; echo ready; exec sleep 1000")
    spy = shell("""
        until pid=$(pidof sleep); do :; done
        cat /proc/$pid/root/secret && echo root
        grep . /proc/$pid/environ && echo environ
        readlink /proc/$pid/fd/* /proc/$pid/exe && echo descriptors
        head -c 1 /proc/$pid/mem && echo memory
        cat /proc/$pid/cwd/secret && echo cwd
        echo seen $(cat /proc/$pid/comm)
        cat /proc/self/environ > /dev/null && echo self
        exit 0
    """)
    pod = pods({"secret": secret, "spy": spy}).started()
    pod.wait_log("ready", "secret.log")
    pod.wait_log("self", "spy.log")
    assert pod.log("spy.log", b"stdout") == "seen sleep\nself\n"
    assert any(note.startswith("landlock: each app has a domain") for note in pod.document()["notes"])


def test_renames_across_directories_still_work(pods):
    """The Landlock domain restricts nothing that an app does with its own files."""
    pod = pods(
        {
            "main": {
                **shell("cd /tmp; mkdir a b; echo x > a/f; mv a/f b/; ln b/f g; cat g"),
                "user": "1000",
            }
        }
    )
    assert pod.ended() == 0
    assert pod.log() == "x\n"


def test_an_app_with_the_right_may_mount(pods):
    """H2: no domain for an app with CAP_SYS_ADMIN, and it is told."""
    plan = IsolatorPlan(capabilities=("CAP_SYS_ADMIN",))
    pod = pods(
        {
            "main": shell("mount -t tmpfs t /work && touch /work/in && echo mounted"),
            "other": shell("mount -t tmpfs t /work || echo refused"),
        },
        plans={"main": plan},
    )
    assert pod.ended() == 0
    assert pod.log() == "mounted\n"
    assert pod.log("other.log", b"stdout") == "refused\n"
    (note,) = [note for note in pod.document()["notes"] if note.startswith("app main: ")]
    assert "no Landlock domain, since it may mount (CAP_SYS_ADMIN)" in note
    assert "CAP_SYS_PTRACE" not in note


def test_no_process_of_the_host(pods):
    pod = pods({"main": shell("ls -d /proc/[0-9]* | wc -l")})
    assert pod.ended() == 0
    assert int(pod.log()) <= 4  # PID 1, the shell, ls, wc


def test_devices(pods, tmp_path):
    """H11: the usual nodes and no other; what mknod makes stays dead, in the root, in /dev and on volumes."""
    script = """
        ls /dev | tr '\n' ' '; echo
        head -c 2 /dev/zero | wc -c
        echo x > /dev/full || echo full
        echo lost > /dev/null && echo null
        [ $(head -c 4 /dev/urandom | wc -c) = 4 ] && echo random
        ls -l /dev/ptmx /dev/pts | grep -c ptmx
        for place in / /dev /volume /dev/shm; do
            mknod $place/zero-$$ c 1 5 && head -c 1 $place/zero-$$ 2>&1 >/dev/null | grep -o 'Permission denied'
        done
        mknod /disk b 254 0 && head -c 1 /disk 2>&1 | grep -o -e 'Permission denied' -e 'not permitted'
    """
    source = tmp_path / "volume"
    source.mkdir()
    pod = pods(
        {"main": shell(script)},
        volumes={"v": str(source)},
        mounts={"main": [MountSetup("v", "/volume", False, False)]},
    )
    assert pod.ended() == 0
    assert pod.log(stream=b"stdout").split("\n") == [
        "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ",
        "2",
        "full",
        "null",
        "random",
        "2",
        *["Permission denied"] * 4,
        pod.log(stream=b"stdout").split("\n")[-2],
        "",
    ]
    assert pod.log(stream=b"stdout").split("\n")[-2] in ("Permission denied", "not permitted")


def test_masked_and_read_only(pods):
    """H11: the usual paths of /proc and /sys, as root."""
    script = """
        for file in kcore keys timer_list; do [ ! -e /proc/$file ] || wc -c < /proc/$file; done | sort -u
        ls /proc/acpi /sys/firmware 2>/dev/null | grep -v : | wc -w
        echo 1 > /proc/sys/kernel/panic || echo refused
        echo b > /proc/sysrq-trigger || echo refused
        echo 1 > /sys/kernel/mm/transparent_hugepage/defrag || echo refused
        mkdir /sys/fs/cgroup/x || echo refused
    """
    pod = pods({"main": shell(script)})
    assert pod.ended() == 0
    assert pod.log(stream=b"stdout").split() == ["0", "0", "refused", "refused", "refused", "refused"]


def test_shared_memory_is_the_pods(pods):
    """Apps share the IPC namespace, and /dev/shm with it."""
    pod = pods(
        {
            "one": shell("echo hi > /dev/shm/x"),
            "two": shell("until cat /dev/shm/x; do sleep 0.05; done 2>/dev/null"),
        }
    )
    assert pod.ended() == 0
    assert pod.log("two.log") == "hi\n"
    assert not os.path.exists("/dev/shm/x")


# --- handlers, restarts, lifecycle -----------------------------------------------------------------------------


def test_handlers_in_order(pods):
    """H4: pre-start, main, post-stop; the same user, environment and root."""
    fields = {
        **handlers(
            pre_start="sleep 0.2; echo pre $(id -u) $A $AC_APP_NAME >> /tmp/order",
            post_stop="echo post $(id -u) $A >> /tmp/order; cat /tmp/order",
        ),
        "environment": [{"name": "A", "value": "b"}],
        "user": "1000",
        "group": "100",
    }
    pod = pods({"main": {**shell("echo main >> /tmp/order; exit 9"), **fields}})
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "pre 1000 b main\nmain\npost 1000 b\n"
    assert pod.app()["exitCode"] == 9


def test_pre_start_must_succeed(pods):
    pod = pods({"main": {**shell("echo main"), **handlers(pre_start="exit 3", post_stop="echo post")}})
    with pytest.raises(StagerError, match="pre-start"):
        pod.started()
    assert (pod.app()["exitCode"], pod.app()["exitReason"]) == (125, "start-failed")
    assert pod.app()["message"] == "its pre-start handler exited with status 3"
    assert pod.log() == ""


def test_post_stop_runs_at_a_stop_and_is_bounded(pods):
    """H4, G7: also when main was killed; a handler that hangs does not hold the pod up."""
    pod = pods(
        {
            "good": {**shell("echo up; exec sleep 1000"), **handlers(post_stop="echo after")},
            "hangs": {**shell("echo up; exec sleep 1000"), **handlers(post_stop="echo after; exec sleep 1000")},
        },
        times=StagerTimes(stop=1),
    ).started()
    pod.wait_log("up", "good.log")
    pod.wait_log("up", "hangs.log")
    assert pod.stop() == 0
    assert pod.log("good.log") == "up\nafter\n"
    assert pod.log("hangs.log") == "up\nafter\n"
    assert any("post-stop handler took too long" in note for note in pod.document()["notes"])


def test_any_ends_the_pod_with_its_first_app(pods):
    """H5: ``kurma.io/lifecycle``: ``any``."""
    pod = pods(
        {"long": shell("exec sleep 1000"), "short": shell("exit 5")}, annotations={"kurma.io/lifecycle": "any"}
    )
    assert pod.ended() == 0
    assert pod.app("short")["exitCode"] == 5
    assert pod.app("long")["exitReason"] == "killed"


def test_restart_on_failure_from_a_clean_copy(pods, tmp_path):
    """H5, H3: again while it fails, with growing pauses, each time on a clean root with a log of its own."""
    source = tmp_path / "count"
    source.mkdir()
    script = """
        echo x >> /count/n; [ -e /mark ] && echo dirty; touch /mark
        n=$(wc -l < /count/n); echo run $n; [ $n = 3 ]
    """
    pod = pods(
        {"main": shell(script)},
        app_annotations={"kurma.io/restart": "on-failure"},
        volumes={"c": str(source)},
        mounts={"main": [MountSetup("c", "/count", False, False)]},
    )
    assert pod.ended() == 0, pod.output()
    app = pod.app()
    assert (app["exitCode"], app["restarts"], app["log"]) == (0, 2, "main.2.log")
    assert [one["exitCode"] for one in app["earlier"]] == [1, 1]
    assert [pod.log(name) for name in ("main.log", "main.1.log", "main.2.log")] == [
        "run 1\n",
        "run 2\n",
        "run 3\n",
    ]


def test_restart_always_until_stopped(pods):
    pod = pods({"main": shell("echo run; exit 0")}, app_annotations={"kurma.io/restart": "always"}).started()
    pod.wait_log("run", "main.2.log")
    assert pod.app()["exited"] is False
    assert pod.stop() == 0
    assert pod.app()["exited"] is True


def test_unknown_words_are_refused(pods):
    pod = pods({"main": shell("true")}, annotations={"kurma.io/lifecycle": "sometimes"})
    with pytest.raises(StagerError, match="'sometimes' is none of all, any"):
        pod.started()


# --- logs ------------------------------------------------------------------------------------------------------


def test_log_format(pods):
    """H7: CRI lines; a part without its end is marked; any byte passes."""
    pod = pods({"main": shell(r"printf 'a\n\nb'; sleep 0.3; printf 'c\n\000\377\nlast'")})
    assert pod.ended() == 0
    lines = pod.raw_log().split(b"\n")
    assert lines.pop() == b""
    fields = [line.split(b" ", 3) for line in lines]
    assert [(one[1], one[2], one[3]) for one in fields] == [
        (b"stdout", b"F", b"a"),
        (b"stdout", b"F", b""),
        (b"stdout", b"P", b"b"),
        (b"stdout", b"F", b"c"),
        (b"stdout", b"F", b"\0\xff"),
        (b"stdout", b"P", b"last"),
    ]
    assert all(len(one[0]) == 30 and one[0].endswith(b"Z") for one in fields)
    assert [one[0] for one in fields] == sorted(one[0] for one in fields)


def test_log_is_whole_at_the_end(pods):
    """What was written before the end is there, all of it, in order."""
    pod = pods({"main": shell("seq 1 100000")})
    assert pod.ended(60) == 0
    assert pod.log() == "".join(f"{number}\n" for number in range(1, 100001))


def test_log_is_turned(pods):
    """H7: by size and count; the newest lines are kept."""
    pod = pods({"main": shell("seq 1 100000")}, times=StagerTimes(stop=3, log_size=300_000, log_count=3))
    assert pod.ended(60) == 0
    names = sorted(os.listdir(f"{pod.directory}/pod/logs"))
    assert names == ["main.log", "main.log.1", "main.log.2"]
    text = "".join(pod.log(name) for name in reversed(names))
    first = int(text.split("\n", 1)[0])
    assert text == "".join(f"{number}\n" for number in range(first, 100001))


def test_logs_call_in(pods):
    pod = pods(
        {"main": shell("echo one; sleep 0.2; echo two >&2; sleep 0.2; echo three; exec sleep 1000")}
    ).started()
    pod.wait_log("three")
    assert pod.call("logs", "main") == (0, "one\ntwo\nthree\n", "")
    assert pod.call("logs", "main", "--tail", "2") == (0, "two\nthree\n", "")
    assert pod.call("logs", "main", "--stream=stderr") == (0, "two\n", "")
    second = next(line for line in pod.raw_log().splitlines() if line.endswith(b"two")).split(b" ")[0].decode()
    assert pod.call("logs", "main", "--since", second) == (0, "two\nthree\n", "")
    code, out, err = pod.call("logs", "nobody")
    assert (code, out) == (2, "")
    assert "no app 'nobody'" in err
    assert pod.call("logs", "main", "--since", "yesterday")[0] == 2


def test_logs_call_in_follows_across_the_turn(pods):
    """No line lost or doubled at the turn."""
    script = "i=0; while [ $i -lt 40 ]; do seq $((i*100+1)) $((i*100+100)); sleep 0.03; i=$((i+1)); done"
    pod = pods({"main": shell(script)}, times=StagerTimes(stop=3, log_size=20_000, log_count=5)).started()
    # The pod ends with the app, and takes its call-ins along: keep it with a second one.
    code, out, _ = pod.call("logs", "main", "--follow")
    numbers = [int(line) for line in out.split()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 1000
    assert code in (0, 137)


# --- status, run -----------------------------------------------------------------------------------------------


def test_status_call_in(pods):
    import json

    pod = pods({"main": shell("exec sleep 1000"), "over": shell("exit 4")}).started()
    until(lambda: pod.app("over")["exited"])
    code, out, err = pod.call("status")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["main"]["pid"] == pod.app()["pid"]
    assert value["main"]["exited"] is False
    assert (value["over"]["exited"], value["over"]["exitCode"], value["over"]["exitReason"]) == (True, 4, "exited")


def test_run(pods):
    """G5: in the app's namespaces, root, cgroup; as its user unless another is asked for; streams and codes."""
    fields = {
        "user": "alice",
        "group": "100",
        "workingDirectory": "/home/alice",
        "environment": [{"name": "A", "value": "app"}],
    }
    pod = pods({"main": {**shell("touch /tmp/mark; echo up; exec sleep 1000"), **fields}}).started()
    pod.wait_log("up")
    code, out, err = pod.run(
        "sh",
        "-c",
        "cat; id -u; id -g; pwd; ls /tmp; hostname; echo $A $AC_APP_NAME; echo err >&2; exit 42",
        stdin=b"in\n",
    )
    assert (code, out, err) == (42, "in\n1000\n100\n/home/alice\nmark\ntest-host\napp main\n", "err\n")
    assert pod.run("sh", "-c", "kill -TERM $$")[0] == 143
    code, out, _ = pod.run(
        "sh", "-c", "id -u; id -G; pwd; echo $A",
        user="root", group="staff", supplementaryGIDs=[20, 21], workingDirectory="/etc",
        environment=[{"name": "A", "value": "mine"}],
    )  # fmt: skip
    assert (code, out) == (0, "0\n50 20 21\n/etc\nmine\n")
    # The root of what it sees of cgroups is its own, and that is the app's.
    code, out, _ = pod.run("sh", "-c", "cat /proc/self/cgroup /proc/$(pidof sleep)/cgroup")
    assert code == 0
    assert {line.split(":", 2)[2] for line in out.splitlines()} == {"/"}
    with open(f"/proc/{pod.app()['pid']}/cgroup") as file:
        ours = [line.strip() for line in file if pod.setup.uuid in line]
    assert len(ours) == len(Layout.detect().hierarchies)
    assert all(line.endswith(f"{pod.setup.uuid}/app-main") for line in ours)
    code, out, _ = pod.run("cat", "/proc/1/comm")
    assert out == "kurma-init\n"


def test_run_has_no_more_power_than_the_app(pods):
    plan = IsolatorPlan(capabilities=("CAP_CHOWN",), no_new_privileges=True, rlimits={"nofile": (50, 60)})
    pod = pods(
        {"main": shell("echo up; exec sleep 1000"), "other": shell("echo up; exec sleep 1001")},
        plans={"main": plan},
    ).started()
    pod.wait_log("up")
    pod.wait_log("up", "other.log")
    code, out, _ = pod.run("sh", "-c", "awk '/CapPrm|CapBnd|NoNewPrivs/ {print $2}' /proc/self/status; ulimit -n")
    assert (code, out.split()) == (0, ["0000000000000001", "0000000000000001", "1", "50"])
    found = pod.run("ps", "-o", "pid,args")[1].splitlines()
    (other,) = [line.split()[0] for line in found if line.endswith("sleep 1001")]
    code, out, err = pod.run("ls", f"/proc/{other}/root/")
    assert (code != 0, out) == (True, "")
    assert err == f"ls: /proc/{other}/root/: Permission denied\n"


def test_run_says_what_is_wrong(pods):
    pod = pods({"main": shell("echo up; exec sleep 1000"), "over": shell("true")}).started()
    pod.wait_log("up")
    code, _, err = pod.run("nosuch")
    assert (code, err) == (
        127,
        "kurma: app main: nosuch: not found in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
    )
    assert pod.run("/etc/passwd")[0] == 126
    code, _, err = pod.run("true", user="nobody-here")
    assert (code, err) == (125, "kurma: app main: no user 'nobody-here' in the image's /etc/passwd\n")
    code, _, err = pod.run("true", app="nobody")
    assert (code, err) == (2, "kurma: the pod has no app 'nobody'\n")
    code, _, err = pod.run("true", app="over")
    assert (code, err) == (125, "kurma: app over does not run\n")
    assert pod.call("run", document=b"{}")[0] == 2


def test_attach_says_what_is_wrong(pods):
    pod = pods({"main": shell("echo up; exec sleep 1000"), "over": shell("true")}).started()
    pod.wait_log("up")
    usage = "kurma: usage: attach APP [--no-stdin] [--no-output] [--detach-keys KEYS]\n"
    for words in ((), ("main", "more"), ("main", "--no-such"), ("main", "--detach-keys")):
        assert pod.call("attach", *words) == (2, "", usage)
    said = "kurma: 'ctrl-1' is not a key: write a character, or ctrl- and one of a-z @ [ \\ ] ^ _\n"
    assert pod.call("attach", "main", "--detach-keys=ctrl-p,ctrl-1") == (2, "", said)
    assert pod.call("attach", "nobody") == (2, "", "kurma: the pod has no app 'nobody'\n")
    assert pod.call("attach", "over") == (125, "", "kurma: app over has ended\n")


# --- footprint -------------------------------------------------------------------------------------------------


def memory(pid: int) -> int:
    """Anonymous memory that is the process's own, in KiB: what a further pod costs."""
    found = 0
    anonymous = 0
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == "Private_Dirty":
                private = int(value.split()[0])
            elif key == "Anonymous":
                anonymous = int(value.split()[0])
                found += min(anonymous, private)
    return found


@pytest.mark.full
def test_footprint_and_idleness(pods):
    """Private memory of stager and PID 1, and no wake-up while nothing happens."""
    pod = pods({"main": shell("echo up; exec sleep 1000")}).started()
    pod.wait_log("up")
    time.sleep(0.3)
    with open(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children") as file:
        children = [int(word) for word in file.read().split()]
    both = [pod.process.pid, children[0]]

    def switches() -> int:
        found = 0
        for pid in both:
            with open(f"/proc/{pid}/status") as file:
                found += sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
        return found

    before = switches()
    time.sleep(1)
    assert switches() == before
    assert sum(memory(pid) for pid in both) <= 6 * 1024
