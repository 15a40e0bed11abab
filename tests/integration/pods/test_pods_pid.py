"""PID namespaces of apps: the pod's, their own, the host's, another app's, from inside and from outside (C8)."""

import contextlib
import os
import signal
import time

import pytest

from kurma_core.errors import AppNotFoundError, KurmaError, ManifestError, PowerError, StagerError, UsageError
from kurma_core.value import replace
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

PID = "kurma.io/pid"
PIDS = ("sh", "-c", "cd /proc; echo [0-9]*")


def app(script, pid, **more):
    return {"app": shell(script), "annotations": [{"name": PID, "value": pid}], **more}


def namespace(pid):
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def inner(pid):
    with open(f"/proc/{pid}/status") as file:
        (line,) = [line for line in file if line.startswith("NSpid:")]
    return int(line.split()[-1])


def mains(house, pod):
    return {one.name: one.pid for one in house.client.pod(pod.uuid).apps}


def add(house, pod, name, script, pid, *, start=True, **options):
    request = house.request({name: app(script, pid)}, **options)
    return house.client.app_add(pod.uuid, request, start=start)


def test_an_app_with_a_pid_namespace_of_its_own(house):
    """Its main program is PID 1, and it sees no other app; its end ends all that runs in it."""
    script = "trap 'exit 7' TERM; echo $$ /proc/[0-9]*; sleep 1000 & while :; do sleep 0.05; done"
    apps = {"one": app(script, "own"), "two": app("exec sleep 1000", "own"), "plain": "exec sleep 1000"}
    with house.running(apps) as pod:
        found = mains(house, pod)
        assert len({namespace(pid) for pid in found.values()} | {namespace("self")}) == 4
        assert (inner(found["one"]), inner(found["two"])) == (1, 1)
        until(lambda: house.log(pod, "one"), "its output")
        assert house.log(pod, "one") == "1 /proc/1\n"
        code, out, _ = house.enter(pod.uuid, *PIDS, app="two")
        assert (code, len(out.split())) == (0, 2)
        assert out.split()[0] == "1"
        assert house.enter(pod.uuid, "cat", "/proc/1/comm", app="two")[1] == "sleep\n"
        # The pod's namespace shows PID 1 of the pod, and the app that has none of its own.
        assert len(house.enter(pod.uuid, *PIDS, app="plain")[1].split()) == 3
        children = [one.pid for one in house.client.processes(pod.uuid, "one") if one.pid != found["one"]]
        assert len(children) >= 1
        house.client.app_stop(pod.uuid, "one")
        (ended, *_) = house.client.pod(pod.uuid).apps
        assert (ended.exit_code, ended.reason) == (7, "exited")
        assert not any(map(alive, children))
        house.client.app_start(pod.uuid, "one")
        assert inner(mains(house, pod)["one"]) == 1
        house.client.app_stop(pod.uuid, "two", force=True)
        assert house.client.pod(pod.uuid).apps[1].signal == signal.SIGKILL


def test_an_app_in_the_namespace_of_another(house):
    """It sees that app's processes, and ends with them. The app must run."""
    apps = {"target": app("exec sleep 1000", "own"), "other": app("exec sleep 999", "app:target")}
    with house.running({**apps, "main": "exec sleep 1000"}) as pod:
        found = mains(house, pod)
        assert namespace(found["target"]) == namespace(found["other"])
        assert inner(found["other"]) != 1
        add(house, pod, "late", "cat /proc/1/cmdline; exec sleep 1000", "app:target")
        until(lambda: "sleep" in house.log(pod, "late"), "its output")
        assert house.enter(pod.uuid, "cat", "/proc/1/cmdline", app="late")[1] == "sleep\x001000\0"
        late = mains(house, pod)["late"]
        house.client.app_stop(pod.uuid, "target", force=True)
        until(lambda: not alive(late) and house.client.pod(pod.uuid).apps[3].exited, "the end of the others")
        with pytest.raises(StagerError, match="app target, whose PID namespace it shares, does not run"):
            house.client.app_start(pod.uuid, "late")
        # The pod goes on, and so may the app.
        house.client.app_start(pod.uuid, "target")
        house.client.app_start(pod.uuid, "late")
        with pytest.raises(AppNotFoundError, match="app none: the pod has no such app"):
            add(house, pod, "lost", "true", "app:none")


def test_the_hosts_namespace_needs_a_grant(house):
    with house.running("exec sleep 1000") as pod:
        with pytest.raises(PowerError, match="os/linux/namespaces=pid") as refused:
            add(house, pod, "tool", "true", "host")
        assert "--grant os/linux/namespaces=pid" in refused.value.hint
        script = f"cat /proc/{os.getpid()}/comm; (sleep 0.1; exec sleep 999) & exec sleep 1000"
        add(house, pod, "tool", script, "host", grants=("os/linux/namespaces=pid",))
        found = mains(house, pod)
        assert namespace(found["tool"]) == namespace("self") != namespace(found["main"])
        with open("/proc/self/comm") as file:
            until(lambda: house.log(pod, "tool"), "its output")
            assert house.log(pod, "tool") == file.read()
        assert any("sees every process of the host" in note for note in house.client.pod(pod.uuid).notes)
        assert house.enter(pod.uuid, "readlink", "/proc/self", app="tool")[0] == 0
        left = [one.pid for one in house.client.processes(pod.uuid, "tool")]
        house.client.app_stop(pod.uuid, "tool", force=True)
        assert not any(map(alive, left))


def test_what_cannot_be_is_refused(house):
    for pid, error, words in (
        ("other", ManifestError, "annotation kurma.io/pid: expected pod, own, host or app:NAME"),
        ("app:main", UsageError, "it cannot share its own PID namespace"),
        ("app:none", AppNotFoundError, "the pod has no such app"),
        ("host", PowerError, "os/linux/namespaces=pid"),
    ):
        with pytest.raises(error, match=words):
            house.client.prepare(house.request({"main": app("true", pid)}))
    grants = ("os/linux/namespaces=pid",)
    apps = {"one": app("true", "host"), "two": app("true", "app:one")}
    with pytest.raises(UsageError, match="app two cannot share the PID namespace of app one, which is the host's"):
        house.client.prepare(house.request(apps, grants=grants))
    handled = app("true", "own")
    handled["app"]["eventHandlers"] = [{"name": "pre-start", "exec": ["/bin/true"]}]
    with pytest.raises(UsageError, match="with an event handler"):
        house.client.prepare(house.request({"main": handled}))


# --- variants --------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.vm
def test_an_own_namespace_in_a_user_namespace(house):
    apps = {"main": app("echo $$ /proc/[0-9]*; id -u; exec sleep 1000", "own")}
    with house.running(apps, userns="655360:65536") as pod:
        until(lambda: house.log(pod, "main").endswith("\n0\n"), "its output")
        assert house.log(pod, "main") == "1 /proc/1\n0\n"
        main = mains(house, pod)["main"]
        assert os.stat(f"/proc/{main}").st_uid == 655360
        assert len(house.enter(pod.uuid, *PIDS, app="main")[1].split()) == 2


@pytest.mark.full
def test_an_own_namespace_in_the_hosts(house):
    """Of a pod that shares the host's."""
    host = {"name": "os/linux/namespaces", "value": {"pid": "host"}}
    apps = {"own": app("exec sleep 1000", "own"), "plain": "exec sleep 1000"}
    request = replace(house.request(apps, isolators=[host], grants=("os/linux/namespaces=pid",)))
    with house.started(house.client.prepare(request)) as pod:
        found = mains(house, pod)
        assert namespace(found["plain"]) == namespace("self") != namespace(found["own"])
        assert inner(found["own"]) == 1


@pytest.mark.full
def test_want_of_memory_in_an_own_namespace(house):
    limit = {"name": "resource/memory", "value": {"limit": "24Mi"}}
    hog = app("", "own")
    hog["app"] = shell("exec tail -c 200m /dev/zero", isolators=[limit])
    with house.running({"main": "exec sleep 1000", "hog": hog}) as pod:
        until(lambda: house.client.pod(pod.uuid).apps[1].exited, "its end")
        assert house.client.pod(pod.uuid).apps[1].reason == "oom"


@pytest.mark.full
@pytest.mark.parametrize("pid", ["own", "host"])
def test_the_end_of_the_stager_ends_all(house, pid):
    grants = ("os/linux/namespaces=pid",) if pid == "host" else ()
    with house.running({"main": app("sleep 1000 & exec sleep 1000", pid)}, grants=grants) as pod:
        until(lambda: len(house.client.processes(pod.uuid, "main")) == 2, "its processes")
        pids = [one.pid for one in house.client.processes(pod.uuid, "main")]
        os.kill(pod.stager.pid, signal.SIGKILL)
        pod.stager.wait(30)
        with contextlib.suppress(KurmaError):
            pod.finish()
        until(lambda: not any(map(alive, pids)), "their end")


@pytest.mark.full
def test_orphans_of_an_app_in_the_hosts_namespace_are_reaped(house):
    """By the stager: the host's init never sees them."""
    script = "(sh -c 'sleep 0.2' &) ; exec sleep 1000"
    with house.running({"main": app(script, "host")}, grants=("os/linux/namespaces=pid",)) as pod:
        main = mains(house, pod)["main"]
        until(lambda: [one.pid for one in house.client.processes(pod.uuid, "main")] == [main], "the orphan's end")
        time.sleep(0.1)
        with open(f"/proc/{pod.stager.pid}/task/{pod.stager.pid}/children") as file:
            assert str(main) in file.read().split()


@pytest.mark.full
def test_a_pod_without_apps_in_the_hosts_namespaces(house):
    """By the caller's own isolators, without a grant; its apps come later, and find the host's."""
    host = (("os/linux/namespaces", {"pid": "host", "ipc": "host", "uts": "host"}),)
    request = replace(house.request({}), isolators=host)
    with house.started(house.client.prepare(request)) as pod:
        name = f"kurma-test-{os.getpid()}"
        script = f"echo {name} > /dev/shm/{name}; echo up; exec sleep 1000"
        add(house, pod, "late", script, "pod")
        try:
            until(lambda: house.log(pod, "late"), "its output")
            main = mains(house, pod)["late"]
            for kind in ("pid", "ipc", "uts"):
                assert os.stat(f"/proc/{main}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino
            with open(f"/dev/shm/{name}") as file:
                assert file.read() == f"{name}\n"
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"/dev/shm/{name}")
