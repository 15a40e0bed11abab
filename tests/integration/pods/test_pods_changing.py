"""Pods that change while they run: apps come, start, stop and go; the pod's namespaces outlive them all (G10)."""

import contextlib
import os

import pytest

from kurma_core.errors import (
    AppNotFoundError,
    CommandNotExecutableError,
    CommandNotFoundError,
    IsolatorError,
    PodStateError,
    UsageError,
)
from kurma_core.linux.cgroups import CgroupTree
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SLEEP = "exec sleep 1000"
NAMESPACES = ("net", "pid", "ipc", "uts")


@pytest.fixture
def empty(house):
    """``empty(net=…)``: a pod without apps, that runs."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(house.running({}, **options))
    house.client.network_rm("default")


def add(house, pod, script=SLEEP, name="one", *, start=True, **options):
    """Adds an app, by a client of its own, as another shell would."""
    with house.connect() as client:
        return client.app_add(pod.uuid, house.request({name: script}, **options), start=start)


def app_of(house, pod, name="one"):
    return next(app for app in house.client.pod(pod.uuid).apps if app.name == name)


def inside(pod, name=""):
    """A path in the stager's root."""
    return f"/proc/{pod.stager.pid}/root/{name}"


def bound(pod):
    """What is mounted right below /layers and /volumes of the stager."""
    with open(f"/proc/{pod.stager.pid}/mountinfo") as file:
        targets = [line.split()[4] for line in file]
    return sorted(target for target in targets if target.startswith(("/layers/", "/volumes/")))


def nothing_of_it(house, pod, name="one"):
    """Whether nothing is left of the app anywhere."""
    state = house.state_of(pod)
    found = [
        *(app.name for app in house.client.pod(pod.uuid).apps if app.name == name),
        *([] if state.get("change") is None else ["change"]),
        *(key for key in state["layers"] if key == name),
        *(entry for entry in os.listdir(house.path(pod, "pod/apps")) if entry == name),
        *(entry for entry in os.listdir(house.path(pod, "pod/logs")) if entry.startswith(f"{name}.")),
        *(["cgroup"] if CgroupTree(f"kurma/{pod.uuid}/app-{name}").exists() else []),
    ]
    with open(inside(pod, "manifest")) as file:
        return not found and f'"{name}"' not in file.read()


# --- a pod without apps ------------------------------------------------------------------------------------------


@pytest.mark.vm
def test_namespaces_outlive_every_app(house, empty):
    """From outside by their inodes, from inside by address, PID 1 and what stands in shared memory."""
    pod = empty(net="default", name="lab")
    path = house.client.pod(pod.uuid).network_namespace
    before = os.stat(path).st_ino
    (address,) = [
        one.address.split("/")[0]
        for attachment in house.client.pod(pod.uuid).attachments
        if attachment.interface == "eth0"
        for one in attachment.result.addresses[:1]  # IPv4
    ]
    seen = []
    for name in ("one", "two", "one"):
        record = add(house, pod, "echo $$ > /dev/shm/left-by-$AC_APP_NAME; " + SLEEP, name)
        app = next(app for app in record.apps if app.name == name)
        assert [app.name for app in record.apps] == [name]
        links = {kind: os.readlink(f"/proc/{app.pid}/ns/{kind}") for kind in NAMESPACES}
        assert os.stat(f"/proc/{app.pid}/ns/net").st_ino == before
        assert f" {address}/" in house.enter(pod.uuid, "ip", "-4", "addr", "show", "eth0")[1]
        said = house.enter(pod.uuid, "sh", "-c", "hostname; ls /dev/shm; cut -d' ' -f22 /proc/1/stat")[1].split()
        assert said[0] == "lab"
        seen.append((links, said[-1], said[1:-1]))
        house.client.app_rm(pod.uuid, name, force=True)
        assert house.client.pod(pod.uuid).state == "running"
    (first, _, _), *others = seen
    assert all(links == first for links, _, _ in others)
    assert len({init for _, init, _ in seen}) == 1, "PID 1 was started once"
    both = ["left-by-one", "left-by-two"]
    assert [left for _, _, left in seen] == [both[:1], both, both]
    assert os.stat(path).st_ino == before
    assert bound(pod) == []


def test_it_ends_when_it_is_stopped(house):
    """In the foreground, as `kurma run --pod empty.yml`; its exit code is 0, with and without an owner."""
    run = house.launch({}, net="none")
    assert house.client.pod(run.uuid).apps == ()
    assert house.client.stop(run.uuid).state == "stopped"
    assert run.wait() == 0
    again = house.launch(start=run.uuid)
    again.kill()
    record = house.client.stop(run.uuid)
    assert (record.state, record.reason, record.exit_code) == ("stopped", None, 0)


def test_the_foreground_shows_who_comes(house):
    """What is written by apps that were not there when the pod was started, each of its executions, once."""
    run = house.launch({}, net="none")
    pod = house.client.pod(run.uuid)
    for word in ("first", "second"):
        add(house, pod, f"echo {word} of one; {SLEEP}")
        run.wait_output(f"{word} of one")
        if word == "first":
            house.client.app_stop(run.uuid, "one")
            house.client.app_start(run.uuid, "one")
            until(lambda: run.output.count("first of one") == 2, "the second execution's output")
        house.client.app_rm(run.uuid, "one", force=True)
    add(house, pod, "echo other", "two")
    run.wait_output("other")
    house.client.stop(run.uuid)
    run.wait()
    assert sorted(run.output.splitlines()) == ["first of one", "first of one", "other", "second of one"]


def test_prepared_then_started(house):
    record = house.client.prepare(house.request({}))
    assert record.state == "prepared"
    assert house.client.pod(record.uuid).manifest["apps"] == []
    run = house.launch(start=record.uuid)
    house.client.stop(record.uuid)
    assert run.wait() == 0


def test_it_stays_whatever_ends(house, empty):
    """An app's end, by itself, by `app stop`, or by failing, is no end of a pod that was made empty."""
    pod = empty()
    add(house, pod, "exit 3")
    until(lambda: app_of(house, pod).exited, "the app's end")
    assert (app_of(house, pod).exit_code, app_of(house, pod).state) == (3, "exited")
    add(house, pod, SLEEP, "two")
    house.client.app_stop(pod.uuid, "two")
    assert app_of(house, pod, "two").state == "killed"
    with pytest.raises(CommandNotFoundError) as caught:
        add(house, pod, {"exec": ["/no-such-program"], "user": "0", "group": "0"}, "three")
    assert (caught.value.message, caught.value.exit_code) == ("app three: /no-such-program: not found", 127)
    assert app_of(house, pod, "three").state == "start-failed"
    with pytest.raises(CommandNotExecutableError, match=r"^app four: /etc/passwd: is not executable"):
        add(house, pod, {"exec": ["/etc/passwd"], "user": "0", "group": "0"}, "four")
    assert house.client.pod(pod.uuid).state == "running"


def test_a_pod_made_with_apps_ends_with_the_last(house):
    with house.running({"first": SLEEP}) as pod:
        add(house, pod, SLEEP, "second")
        add(house, pod, SLEEP, "never", start=False)
        house.client.app_stop(pod.uuid, "first")
        assert pod.stager.alive()
        record = house.client.app_stop(pod.uuid, "second")
        assert pod.stager.wait(10) == 0
        record = pod.finish()
        assert (record.state, record.exit_code) == ("stopped", 143)
        assert [(app.name, app.state) for app in record.apps] == [
            ("first", "killed"),
            ("second", "killed"),
            ("never", "created"),
        ]


def test_any_means_any(house):
    """The lifecycle holds for apps that were added, too."""
    annotations = [{"name": "kurma.io/lifecycle", "value": "any"}]
    with house.running({"first": SLEEP}, annotations=annotations) as pod:
        add(house, pod, SLEEP, "second")
        house.client.app_stop(pod.uuid, "second")
        assert pod.stager.wait(10) == 0


# --- what an added app is ----------------------------------------------------------------------------------------


def test_it_is_what_was_asked_for(house, empty, tmp_path):
    """Environment, user, volumes old and new, read-only root, isolators."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text("of the host")
    pod = empty(volumes=[{"name": "shared", "kind": "empty", "mode": "1777"}])
    assert bound(pod) == ["/volumes/shared"]
    app = {
        "app": shell(
            SLEEP,
            user="alice",
            group="users",
            environment=[{"name": "KEY", "value": "a value"}],
            isolators=[{"name": "os/linux/oom-score-adj", "value": 500}],
        ),
        "readOnlyRootFS": True,
        "mounts": [
            {"volume": "shared", "path": "/shared"},
            {
                "volume": "mine",
                "path": "/mine",
                "appVolume": {"name": "mine", "kind": "host", "source": str(tmp_path / "host"), "readOnly": True},
            },
        ],
    }
    record = house.client.app_add(pod.uuid, house.request({"one": app}), start=True)
    assert bound(pod) == [f"/layers/{house.image}", "/volumes/mine", "/volumes/shared"]
    script = "id -un; id -gn; echo $KEY; cat /mine/file; echo; cat /proc/self/oom_score_adj"
    _, out, _ = house.enter(pod.uuid, "sh", "-c", script)
    assert out.split("\n")[:5] == ["alice", "users", "a value", "of the host", "500"]
    with open(f"/proc/{app_of(house, pod).pid}/oom_score_adj") as file:
        assert file.read() == "500\n"
    assert house.enter(pod.uuid, "sh", "-c", "echo x > /shared/by-one && echo ok")[1] == "ok\n"
    assert house.enter(pod.uuid, "sh", "-c", "echo x > /mine/x || echo x > /x || echo no")[1] == "no\n"
    assert [(one.name, one.scope, one.outcome) for one in record.isolators if not one.default] == [
        ("os/linux/oom-score-adj", "one", "enforced")
    ]
    manifest = house.client.pod(pod.uuid).manifest
    assert [volume["name"] for volume in manifest["volumes"]] == ["shared", "mine"]
    assert [one["name"] for one in manifest["apps"]] == ["one"]
    # Another app sees what the first one wrote: the volume is the pod's.
    add(
        house,
        pod,
        {"app": shell("ls /shared; " + SLEEP), "mounts": [{"volume": "shared", "path": "/shared"}]},
        "two",
    )
    until(lambda: house.log(pod, "two") == "by-one\n", "its output")
    house.client.app_rm(pod.uuid, "one", force=True)
    assert [volume["name"] for volume in house.client.pod(pod.uuid).manifest["volumes"]] == ["shared"]
    assert bound(pod) == [f"/layers/{house.image}", "/volumes/shared"]
    assert (tmp_path / "host" / "file").read_text() == "of the host"
    assert not [one for one in house.client.pod(pod.uuid).isolators if one.scope == "one"]
    assert nothing_of_it(house, pod)


def test_isolators_that_cannot_be_enforced(house, empty):
    pod = empty()
    app = shell(SLEEP, isolators=[{"name": "example.com/unknown", "value": 1}])
    with pytest.raises(IsolatorError, match=r"isolator example\.com/unknown of app one would be ignored"):
        add(house, pod, app, strict_isolators=True)
    assert nothing_of_it(house, pod)
    record = add(house, pod, app)
    assert [(one.name, one.scope, one.outcome) for one in record.isolators if not one.default] == [
        ("example.com/unknown", "one", "ignored")
    ]


def test_a_volume_in_memory_comes_and_goes_with_its_app(house, empty):
    pod = empty()
    one = {"app": shell("echo x > /data/x; " + SLEEP), "mounts": [{"volume": "data", "path": "/data"}]}
    add(house, pod, one, volumes=[{"name": "data", "kind": "empty", "kurma.io/memory": True}])
    until(lambda: os.path.exists(f"/proc/{pod.stager.pid}/root/volumes/data/x"))
    house.client.app_rm(pod.uuid, "one", force=True)
    assert bound(pod) == []


def test_an_empty_volume_comes_and_goes_with_its_app(house, empty):
    pod = empty()
    one = {"app": shell("echo x > /data/x; " + SLEEP), "mounts": [{"volume": "data", "path": "/data"}]}
    add(house, pod, one, volumes=[{"name": "data", "kind": "empty"}])
    two = {"app": shell(SLEEP), "mounts": [{"volume": "data", "path": "/data"}]}
    add(house, pod, two, "two")
    house.client.app_rm(pod.uuid, "one", force=True)
    assert house.enter(pod.uuid, "ls", "/data")[1] == "x\n", "another app mounts it"
    house.client.app_rm(pod.uuid, "two", force=True)
    assert bound(pod) == []
    assert os.listdir(house.path(pod, "volumes")) == []
    add(house, pod, one, volumes=[{"name": "data", "kind": "empty"}])
    with pytest.raises(UsageError, match=r"pod .* has another volume data"):
        add(house, pod, one, "three", volumes=[{"name": "data", "kind": "empty", "mode": "0700"}])


@pytest.mark.vm
def test_started_again_from_a_clean_root(house, empty):
    """Each execution has a root, a record and a log of its own."""
    pod = empty()
    add(house, pod, "trap 'exit 7' TERM; ls /made 2>&1; touch /made; echo run; while :; do sleep 0.02; done")
    until(lambda: "run" in house.log(pod), "its output")
    with pytest.raises(PodStateError, match=r"app one of pod .* already runs"):
        house.client.app_start(pod.uuid, "one")
    with pytest.raises(PodStateError, match=r"cannot remove app one of pod .*: it runs"):
        house.client.app_rm(pod.uuid, "one")
    house.client.app_stop(pod.uuid, "one")
    assert (app_of(house, pod).exit_code, app_of(house, pod).instance) == (7, 1)
    house.client.app_stop(pod.uuid, "one")  # it does not run: nothing to do
    house.client.app_start(pod.uuid, "one")
    until(lambda: "run" in house.log(pod), "its output")
    app = app_of(house, pod)
    assert (app.instance, app.state, [(one.instance, one.exit_code) for one in app.earlier]) == (
        2,
        "running",
        [(1, 7)],
    )
    assert house.log(pod, "one") == "ls: /made: No such file or directory\nrun\n"
    house.client.app_stop(pod.uuid, "one", timeout=0)
    # Between the two signals it may find time for its trap.
    assert app_of(house, pod).state in ("killed", "exited")


@pytest.mark.full
def test_stop_insists_and_runs_the_handler(house, empty):
    pod = empty()
    handlers = [{"name": "post-stop", "exec": ["/bin/sh", "-c", "echo after"]}]
    add(house, pod, shell("trap '' TERM; echo up; while :; do sleep 0.05; done", eventHandlers=handlers))
    until(lambda: "up" in house.log(pod), "its output")
    house.client.app_stop(pod.uuid, "one", timeout=0.3)
    assert (app_of(house, pod).exit_code, app_of(house, pod).state) == (137, "killed")
    assert house.log(pod) == "up\nafter\n"
    # Longer than the three seconds that apps have otherwise.
    house.client.app_rm(pod.uuid, "one")
    add(house, pod, "trap 'sleep 3.5; exit 5' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: "up" in house.log(pod), "its output")
    house.client.app_stop(pod.uuid, "one", timeout=20)
    assert (app_of(house, pod).exit_code, app_of(house, pod).state) == (5, "exited")


def test_stop_ends_a_restarting_app(house, empty):
    pod = empty()
    app = {"app": shell("exit 1"), "annotations": [{"name": "kurma.io/restart", "value": "always"}]}
    add(house, pod, app)
    until(lambda: app_of(house, pod).restarts >= 2, "restarts")
    house.client.app_stop(pod.uuid, "one")
    stopped = app_of(house, pod)
    assert stopped.exited
    assert stopped.instance == stopped.restarts + 1
    assert [one.instance for one in stopped.earlier] == list(range(1, stopped.instance))
    house.client.app_start(pod.uuid, "one")
    until(lambda: app_of(house, pod).instance > stopped.instance + 1, "restarts once it was started by hand")
    house.client.app_rm(pod.uuid, "one", force=True)
    add(house, pod, {**app, "app": shell(SLEEP)})
    until(lambda: app_of(house, pod).state == "running", "its start")
    house.client.app_stop(pod.uuid, "one")
    # Ended by the stop alone, not between two executions.
    assert (app_of(house, pod).exited, app_of(house, pod).restarting, app_of(house, pod).restarts) == (
        True,
        False,
        0,
    )


# --- a pod that is started again ---------------------------------------------------------------------------------


def test_the_changed_set_comes_up_again(house):
    run = house.launch({"old": "echo old; " + SLEEP}, net="none", name="changing")
    uuid = run.uuid
    with house.connect() as client:
        client.app_add(uuid, house.request({"new": "echo new; " + SLEEP}), start=True)
        client.app_rm(uuid, "old", force=True)
        until(lambda: "new" in house.log(client.pod(uuid)), "its output")
        client.stop(uuid)
    run.wait()
    record = house.client.pod(uuid)
    assert ([app.name for app in record.apps], record.state, record.exit_code) == (["new"], "stopped", 143)
    again = house.launch(start=uuid)
    again.wait_output("new")
    assert [app.name for app in house.client.pod(uuid).apps] == ["new"]
    with house.connect() as client:
        client.app_add(uuid, house.request({"late": SLEEP}), start=True)
        assert [app.name for app in client.pod(uuid).apps] == ["new", "late"]
    third = house.launch(restart=uuid, wait=None)
    again.wait()
    third.wait_state("running")
    assert {app.state for app in house.client.pod(uuid).apps} == {"running"}
    house.client.stop(uuid)
    third.wait()


def test_executions_of_earlier_runs_are_kept(house):
    """H7: a log is there until its pod, or its app, is removed; also where the pod was started again."""
    run = house.launch({"main": "echo first; exit 1", "other": "kill -TERM $$"}, wait=None)
    uuid = run.uuid
    assert run.wait() == 1
    for number in (2, 3):
        assert house.launch(start=uuid, wait=None).wait() == 1, number
    record = house.client.pod(uuid)
    main = record.apps[0]
    assert (main.instance, main.run) == (3, 3)
    assert [(one.instance, one.run, one.exit_code, one.reason) for one in main.earlier] == [
        (1, 1, 1, "exited"),
        (2, 2, 1, "exited"),
    ]
    other = record.apps[1]
    assert [(one.exit_code, one.reason, one.signal) for one in (*other.earlier, other)] == [
        (143, "killed", 15)
    ] * 3
    assert main.earlier[0].finished_at < main.earlier[1].started_at < main.started_at
    assert house.log(record, "main") == "first\n"
    for instance in (1, 2, 3, -1):
        assert [line.text for line in house.client.logs(uuid, "main", instance=instance)] == [b"first"]
    with pytest.raises(AppNotFoundError, match="nothing is kept of execution 4 of app main") as caught:
        list(house.client.logs(uuid, "main", instance=4))
    assert caught.value.hint == "kept: 1, 2, 3"
    with pytest.raises(AppNotFoundError, match="has several apps"):
        list(house.client.logs(uuid, instance=1))


@pytest.mark.full
def test_only_the_last_runs_are_kept(house, monkeypatch):
    monkeypatch.setattr("kurma_core.pods.record.pod_record.KEPT_RUNS", 2)
    record, _ = house.run("echo hello")
    for _ in range(4):
        house.start(record.uuid)
    main = house.client.pod(record.uuid).apps[0]
    assert (main.instance, [one.instance for one in main.earlier]) == (5, [3, 4])
    assert sorted(os.listdir(house.path(record, "earlier"))) == ["3", "4"]


@pytest.mark.full
def test_a_long_series_keeps_its_last_logs(house, empty):
    """An app that is started again and again fills no disk with logs."""
    pod = empty()
    add(house, pod, "echo hello; exec true")
    for _ in range(13):
        until(lambda: app_of(house, pod).exited, "the app's end")
        house.client.app_start(pod.uuid, "one")
    app = app_of(house, pod)
    assert (app.instance, [one.instance for one in app.earlier]) == (14, list(range(4, 14)))
    assert len(os.listdir(house.path(pod, "pod/logs"))) == 11
    assert [line.text for line in house.client.logs(pod.uuid, "one", instance=4)] == [b"hello"]
