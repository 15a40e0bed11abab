"""Whatever dies while a pod changes, it has the app, or has it not; nothing is there by half (G10)."""

import json
import os
import signal
import subprocess
import sys

import pytest

from kurma_core.errors import KurmaError, PodStateError, StagerError
from tests.integration.pods.test_pods_changing import SLEEP, add, app_of, bound, nothing_of_it
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

_CHANGER = os.path.join(os.path.dirname(__file__), "changer.py")
_DRIVER = "kurma_core.staging.app_callins"
_CHANGES = "kurma_core.pods.change.app_changes:PodApps"

#: (when, where): the adder kills itself; whether the app is there after that.
ADDING = [
    ("leaving", "kurma_core.pods.change.app_changes:_change_state", False),
    ("leaving", "kurma_core.pods.prepare.volumes:make_empty", False),
    ("leaving", "kurma_core.staging.app_callins:LiveRoot.bind", False),
    ("leaving", f"{_DRIVER}:ask", False),
    ("leaving", f"{_DRIVER}:_write", False),
    ("entering", "kurma_core.pods.record.pod_directory:PodDirectory.write_pod", False),
    ("leaving", "kurma_core.pods.record.pod_directory:PodDirectory.write_pod", True),
]
REMOVING = [
    ("leaving", "kurma_core.pods.change.app_changes:_change_state"),
    ("leaving", f"{_DRIVER}:ask"),
    ("leaving", f"{_DRIVER}:_write"),
    ("leaving", "kurma_core.staging.app_callins:LiveRoot.unbind"),
    ("leaving", "kurma_core.pods.record.pod_directory:PodDirectory.write_pod"),
    ("leaving", "kurma_core.pods.prepare.volumes:remove_empty"),
]


def change(house, pod, do, *, fault=None, pause=None, script=SLEEP, wait=True):
    """A change by a process of its own: it adds, or removes, the app ``one`` with a volume of its own."""
    app = {"app": shell(script), "mounts": [{"volume": "data", "path": "/data"}]}
    template = house.template({"one": app}, net=None, volumes=[{"name": "data", "kind": "empty"}])
    request = {
        "config": house.config_file,
        "state": house.state,
        "pod": pod.uuid,
        "do": do,
        "app": "one",
        "template": template,
        "fault": fault,
        "pause": pause,
    }
    process = subprocess.Popen([sys.executable, _CHANGER, json.dumps(request)], stderr=subprocess.PIPE, text=True)
    if not wait:
        return process
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def as_before(house, pod):
    """Nothing of the app is anywhere; the other one does what it did."""
    assert bound(pod) == [f"/layers/{house.image}"]
    assert not os.path.exists(house.path(pod, "volumes/data"))
    assert nothing_of_it(house, pod)
    assert [app.name for app in house.client.pod(pod.uuid).apps] == ["other"]
    assert house.enter(pod.uuid, "echo", "fine", app="other")[:2] == (0, "fine\n")


@pytest.fixture
def pod(house):
    with house.running({"other": SLEEP}) as running:
        yield running


@pytest.mark.parametrize(("when", "where", "there"), ADDING)
def test_the_adder_is_killed(house, pod, when, where, there):
    code, said = change(house, pod, "add", fault=[when, where])
    assert code == -signal.SIGKILL, said
    names = [app.name for app in house.client.pod(pod.uuid).apps]
    assert names == (["other", "one"] if there else ["other"])
    assert house.client.gc(grace=1000).lines == (f"pod {pod.uuid}: cleared of a half-made change of its apps",)
    assert house.state_of(pod)["change"] is None
    if there:
        house.client.app_start(pod.uuid, "one")
        assert app_of(house, pod).state == "running"
        house.client.app_rm(pod.uuid, "one", force=True)
    as_before(house, pod)


def test_the_next_one_clears_up_first(house, pod):
    """Not only gc: whoever changes the pod next, with another volume of the same name."""
    assert change(house, pod, "add", fault=["leaving", f"{_DRIVER}:ask"])[0] == -signal.SIGKILL
    with open(f"/proc/{pod.stager.pid}/root/manifest") as file:
        assert '"one"' in file.read(), "the stager knows it"
    assert bound(pod) == [f"/layers/{house.image}", "/volumes/data"]
    assert change(house, pod, "add") == (0, "")
    house.client.app_start(pod.uuid, "one")
    assert app_of(house, pod).state == "running"
    house.client.app_rm(pod.uuid, "one", force=True)
    as_before(house, pod)


@pytest.mark.parametrize(("when", "where"), REMOVING)
def test_the_remover_is_killed(house, pod, when, where):
    assert change(house, pod, "add") == (0, "")
    code, said = change(house, pod, "rm", fault=[when, where])
    assert code == -signal.SIGKILL, said
    assert house.client.gc(grace=1000).lines == (f"pod {pod.uuid}: cleared of a half-made change of its apps",)
    as_before(house, pod)


@pytest.mark.parametrize(
    "where", ["kurma_core.staging.app_callins:LiveRoot.bind", f"{_DRIVER}:ask", f"{_DRIVER}:_write"]
)
def test_the_stager_is_killed_meanwhile(house, tmp_path, where):
    """At each step of an add; the pod can be started again, without the app."""
    pause = str(tmp_path / "pause")
    run = house.launch({"other": SLEEP}, net="none")
    record = house.client.pod(run.uuid)
    adder = change(house, record, "add", fault=["leaving", where], pause=pause, wait=False)
    until(lambda: os.path.exists(pause), "the add")
    os.kill(record.stager_pid, signal.SIGKILL)
    run.wait()
    os.unlink(pause)
    _, said = adder.communicate(timeout=30)
    assert adder.returncode == 125
    assert len(said.splitlines()) == 1, said
    record = house.client.pod(run.uuid)
    assert record.state == "errored"
    assert [app.name for app in record.apps] == ["other"]
    again = house.launch(start=run.uuid)
    assert [(app.name, app.state) for app in house.client.pod(run.uuid).apps] == [("other", "running")]
    assert house.state_of(run.uuid)["change"] is None
    house.client.stop(run.uuid)
    again.wait()


def test_started_again_while_somebody_adds(house, tmp_path):
    """The adder of the run before comes to an end first, and changes nothing of the next one."""
    pause = str(tmp_path / "pause")
    run = house.launch({"other": SLEEP}, net="none")
    record = house.client.pod(run.uuid)
    fault = ["entering", f"{_CHANGES}._commit"]
    adder = change(house, record, "add", fault=fault, pause=pause, wait=False)
    until(lambda: os.path.exists(pause), "the add")
    house.client.stop(run.uuid)
    run.wait()
    again = house.launch(start=run.uuid, wait=None)
    os.unlink(pause)
    _, said = adder.communicate(timeout=30)
    assert adder.returncode == 125
    assert "cannot change its apps" in said
    again.wait_state("running")
    assert [app.name for app in house.client.pod(run.uuid).apps] == ["other"]
    house.client.stop(run.uuid)
    again.wait()


def test_two_add_at_once(house, pod):
    """Of one name, one of them has it; of two names, both."""
    adders = [change(house, pod, "add", wait=False) for _ in range(2)]
    said = [adder.communicate(timeout=60)[1] for adder in adders]
    assert sorted(adder.returncode for adder in adders) == [0, 125]
    assert "has an app one already" in "".join(said)
    children = []
    for name in ("two", "three"):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                add(house, pod, SLEEP, name)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
    record = house.client.pod(pod.uuid)
    assert sorted(app.name for app in record.apps) == ["one", "other", "three", "two"]
    assert [app.state for app in record.apps].count("running") == 3


def test_an_add_that_fails_leaves_nothing(house, pod, monkeypatch):
    """At each step, by an error in place of death: the adder undoes it by itself."""

    def broken(*_args, **_more):
        raise StagerError("broken by the test")

    for where in ("kurma_core.staging.app_callins.LiveRoot.bind", "kurma_core.staging.app_callins._write"):
        with monkeypatch.context() as patch:
            patch.setattr(where, broken)
            with pytest.raises(StagerError, match="broken by the test"):
                house.client.app_add(pod.uuid, house.request({"one": SLEEP}))
        if "_write" in where:
            # The undoing was broken, too: so it is on record.
            assert house.client.gc(grace=1000).lines
        assert house.state_of(pod)["change"] is None
        assert bound(pod) == [f"/layers/{house.image}"]
        assert nothing_of_it(house, pod)


def test_interrupted(house, pod):
    """Ctrl-C while an app is added undoes it."""
    code, said = change(house, pod, "add", fault=["entering with 2", f"{_DRIVER}:ask"])
    assert code != 0, said
    as_before(house, pod)


# --- whoever is not there, or does not do its part ---------------------------------------------------------------


def test_what_is_not_there(house, pod):
    with pytest.raises(KurmaError, match="no pod nowhere"):
        add(house, type("P", (), {"uuid": "nowhere"}))
    template = {"apps": [{"name": "one", "image": "/no/such/file.aci"}]}
    with pytest.raises(KurmaError, match=r"/no/such/file\.aci"):
        house.client.app_add(pod.uuid, house.request(None, template=template))
    for do in ("app_start", "app_stop", "app_rm"):
        with pytest.raises(KurmaError, match='the pod has no app "nobody"') as caught:
            getattr(house.client, do)(pod.uuid, "nobody")
        assert caught.value.hint == "its apps: other"
    with pytest.raises(PodStateError, match=r"pod .* has an app other already") as caught:
        add(house, pod, SLEEP, "other")
    assert "choose another --name" in caught.value.hint
    with pytest.raises(KurmaError, match="source /no/such/dir"):
        add(house, pod, SLEEP, volumes=[{"name": "v", "kind": "host", "source": "/no/such/dir"}])
    as_before(house, pod)


def test_pods_that_do_not_run(house):
    prepared = house.client.prepare(house.request({}))
    ended, _ = house.run("true")
    for record, state in ((prepared, "prepared"), (ended, "stopped")):
        for do in (
            lambda uuid: house.client.app_add(uuid, house.request({"one": SLEEP})),
            lambda uuid: house.client.app_start(uuid, "main"),
            lambda uuid: house.client.app_stop(uuid, "main"),
            *([lambda uuid: house.client.app_rm(uuid, "main")] if state == "prepared" else []),
        ):
            with pytest.raises(PodStateError, match=f"it is {state}") as caught:
                do(record.uuid)
            assert "kurma start" in caught.value.hint
    assert [app.name for app in house.client.pod(ended.uuid).apps] == ["main"]


DECLARED = {"annotations": [{"name": "kurma.io/stager/callins", "value": "app-add, app-start,app-stop,app-rm"}]}
SERVE = "trap 'exit 0' TERM; exec 4>&-; while :; do sleep 0.02; done"
DONE = "cat <&3 > /dev/null; exit 0"


def test_a_stager_without_the_call_ins(foreign):
    house = foreign(SERVE)
    with pytest.raises(StagerError, match="a pod without apps could never get any") as caught:
        house.run({})
    assert "--stager" in caught.value.hint
    with house.running() as pod:
        with pytest.raises(StagerError, match="its stager shell has no app-add") as caught:
            add(house, pod)
        assert "kurma.io/stager/callins" in caught.value.hint
        with pytest.raises(StagerError, match="its stager shell has no app-stop"):
            house.client.app_stop(pod.uuid, "main")
        assert house.client.pod(pod.uuid).state == "running"


def test_a_stager_that_declares_what_it_does_not_have(foreign):
    house = foreign(SERVE, **DECLARED)
    with house.running() as pod:
        with pytest.raises(StagerError, match="this pod's stager has no call-in 'app-add'"):
            add(house, pod)
        # It cannot be undone either, and is left on record for a stager that can: there is none.
        assert house.state_of(pod)["change"]["app"] == "one"
        assert [app.name for app in house.client.pod(pod.uuid).apps] == ["main"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("cat <&3 > /dev/null; echo 'it is full up' >&2; exit 3", "the stager refuses: it is full up"),
        ("cat <&3 > /dev/null; exit 3", "the stager fails: its call-in 'app-add' ended with status 3"),
        ("cat <&3 > /dev/null; kill -9 $$", "ended with status 137"),
        ("cat <&3 > /dev/null; printf 'a\\033[2J\\000b\\n'; exit 1", "the stager refuses: a"),
        ("cat <&3 > /dev/null; yes 'too much' | head -c 9000000; exit 1", "too much"),
        ("cat <&3 > /dev/null; head -c 9000 /dev/urandom; exit 1", "the stager refuses"),
        ("cat <&3 > /dev/null; exec sleep 1000", "'app-add' did not answer within 2 s"),
        ("exec sleep 1000", "'app-add' did not read its document within 2 s"),
    ],
)
def test_call_ins_that_do_not_do_their_part(foreign, script, said):
    """What they print is untrusted, and their time is bounded; what was bound for the app is taken away."""
    house = foreign(SERVE, {"app-add": script, "app-rm": "echo $1 >> /pod/removed"}, **DECLARED)
    with house.running() as pod:
        driver = house.client.here.services.stagers.get("shell")
        if "did not" in said:
            # As short as a busy machine lets `app-rm` keep it.
            driver.times = type(driver.times)(change=2, document=30 if "answer" in said else 2)
        with pytest.raises(StagerError) as caught:
            house.client.app_add(pod.uuid, house.request({"one": SLEEP}))
        assert said in caught.value.message
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 2200
        with open(house.path(pod, "pod/removed")) as file:
            assert file.read() == "one\n"
        assert house.state_of(pod)["change"] is None
        assert bound(pod) == [f"/layers/{house.image}"]
        assert [app.name for app in house.client.pod(pod.uuid).apps] == ["main"]


def test_a_stager_written_by_somebody_else(foreign):
    """It gets the app's part as documented, with all that is bound; and may do the rest its way."""
    call_ins = {
        "app-add": "cat <&3 > /pod/part; ls /layers /volumes > /pod/seen",
        "app-start": "echo start $* >> /pod/said",
        "app-stop": "echo stop $* >> /pod/said",
        "app-rm": "echo rm $* >> /pod/said",
        "status": 'echo \'{"one": {"exited": true, "exitCode": 3}}\'',
    }
    house = foreign(SERVE, call_ins, **DECLARED)
    with house.running({}) as pod:
        app = {"app": shell(SLEEP), "mounts": [{"volume": "v", "path": "/v"}]}
        record = add(house, pod, app, volumes=[{"name": "v", "kind": "empty"}])
        with open(house.path(pod, "pod/part")) as file:
            part = json.load(file)
        assert [one["name"] for one in part["pod"]["apps"]] == ["one"]
        assert part["appImageOrder"] == {"one": [house.image]}
        assert list(part["images"]) == [house.image]
        assert part["stagerConfig"]["kurma.io"]["keep"] is True
        assert list(part["stagerConfig"]["kurma.io"]["apps"]) == ["one"]
        with open(house.path(pod, "pod/seen")) as file:
            assert file.read().split() == ["/layers:", house.image, "/volumes:", "v"]
        assert [(one.name, one.state, one.exit_code) for one in record.apps] == [("one", "exited", 3)]
        house.client.app_stop(pod.uuid, "one", timeout=1.5)
        house.client.app_rm(pod.uuid, "one")
        with open(house.path(pod, "pod/said")) as file:
            assert file.read() == "start one\nstop one --timeout 1.5\nrm one\n"
        assert bound(pod) == []


def test_images_of_an_added_app_are_kept(house, pod, busybox_image, tmp_path):
    """As long as the app is there; after that they may go."""
    from tests.kit.images import archive, busybox_root

    other = archive(busybox_root(str(tmp_path / "r"), {"own": "x"}), str(tmp_path / "o.aci"), "example.com/own")
    image = house.client.here.images.fetch(other).id
    template = {"apps": [{"name": "one", "image": image, "app": shell(SLEEP)}]}
    house.client.app_add(pod.uuid, house.request(None, template=template))
    with pytest.raises(KurmaError, match=r"uses it|in use|is used"):
        house.client.image_rm(image)
    house.client.app_rm(pod.uuid, "one")
    assert image in [one.name for one in house.client.image_rm(image).removed]
    assert alive(pod.stager.pid)
