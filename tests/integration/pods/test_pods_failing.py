"""What can go wrong at the start: one line that says so, and nothing left."""

import os

import pytest

from kurma_core.api.pods import AppOverrides
from kurma_core.errors import KurmaError, ManifestError, PodDamagedError, StagerError, UsageError
from tests.kit.host import links, small_file_system
from tests.kit.house import both_ways, text_of
from tests.kit.images import busybox_archive, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def assert_one_line(error):
    assert error.message
    assert "\n" not in error.message
    assert "\n" not in (error.hint or "")


def test_a_network_that_cannot_be_joined(make_house):
    """The one before it is left again."""
    before = links()
    house = make_house(
        {
            "container_networks": [
                {
                    "name": "wrong",
                    "plugin": "cni",
                    "container_interface": "veth+{{shortuuid}}",
                    "type": "bridge",
                    "bridge": "wrong0",
                    "ipam": {"type": "no-such-ipam"},
                }
            ]
        }
    )
    with pytest.raises(KurmaError) as caught:
        house.run("true", net=["default", "wrong"])
    assert_one_line(caught.value)
    assert "no-such-ipam" in caught.value.message
    for record in house.client.pods():
        assert (record.state, record.reason) == ("errored", caught.value.message)
        assert house.state_of(record)["steps"] == []
        assert not os.path.exists(f"/run/netns/kurma-{record.uuid}")
    assert not [link for link in links() if link.startswith(("veth", "kv"))]
    for name in ("default", "wrong"):
        house.client.network_rm(name)
    assert links() - before <= {"wrong0"}
    os.system("ip link del wrong0 2> /dev/null")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"net": "nowhere"}, "nowhere"),
        ({"stager": "nobody"}, "no stager nobody"),
        ({"renderer": "nothing"}, "nothing"),
        ({"interactive": "someone"}, "no app someone"),
        ({"name": "Not A Name"}, "is not a valid pod name"),
        ({"uuid": "x"}, "x"),
    ],
)
def test_wrong_wishes(house, options, said):
    with pytest.raises(KurmaError) as caught:
        house.run("true", **options)
    assert_one_line(caught.value)
    assert said in caught.value.message
    assert house.uuids() == []
    assert os.listdir(f"{house.state}/pods/names") == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (AppOverrides(working_directory="relative"), "workingDirectory"),
        (AppOverrides(environment=(("A B", "c"),)), "environment"),
        (AppOverrides(isolators=(("Not A Name", {}),)), "isolators"),
    ],
)
@pytest.mark.parametrize("ephemeral", [False, True])
def test_overrides_that_break_the_manifest(house, overrides, said, ephemeral):
    with pytest.raises(ManifestError) as caught:
        house.run("true", overrides={"main": overrides}, ephemeral=ephemeral)
    assert_one_line(caught.value)
    assert said in caught.value.message
    assert house.uuids() == []
    assert os.listdir(f"{house.state}/pods/names") == []


def test_a_prepared_pod_that_cannot_be_read_again_is_not_left(house, monkeypatch):
    def fail(*_):
        raise PodDamagedError("it cannot be read")

    monkeypatch.setattr("kurma_core.pods.manager.record_of", fail)
    with pytest.raises(PodDamagedError, match="it cannot be read"):
        house.client.prepare(house.request("true"))
    assert house.uuids() == []


def test_an_unknown_image(house):
    template = {"apps": [{"name": "main", "image": "/no/such/file.aci"}], "networks": ["none"]}
    with pytest.raises(KurmaError) as caught:
        house.run(None, template=template)
    assert_one_line(caught.value)
    assert "/no/such/file.aci" in caught.value.message
    assert house.uuids() == []


@pytest.mark.parametrize(
    ("app", "code", "reason"),
    [
        ({"exec": ["/no/such/program"], "user": "0", "group": "0"}, 127, "start-failed"),
        ({"exec": ["/etc/passwd"], "user": "0", "group": "0"}, 126, "start-failed"),
        (shell("true", user="nobody-there"), None, "start-failed"),
        (shell("true", workingDirectory="/no/such/place"), None, "start-failed"),
    ],
)
def test_an_app_that_cannot_be_started(house, app, code, reason):
    """Either the pod runs to its end with that, or its start fails: told in any case, and clean."""
    try:
        record, _ = house.run({"main": app})
        (status,) = record.apps
        assert status.reason == reason
        assert status.message
        assert record.exit_code == status.exit_code != 0
        if code is not None:
            assert record.exit_code == code
    except KurmaError as error:
        assert_one_line(error)
        (record,) = house.client.pods()
        assert record.state == "errored"
    assert house.state_of(record)["steps"] == []


@pytest.mark.parametrize("ephemeral", [False, True])
def test_an_ephemeral_pod_that_fails_to_start_goes_as_well(foreign, ephemeral):
    house = foreign("echo no; exit 9")
    with pytest.raises(KurmaError, match="it ended with status 9"):
        house.run("true", ephemeral=ephemeral)
    assert len(house.uuids()) == (0 if ephemeral else 1)


def test_no_apps_or_options_that_nobody_knows(house):
    with pytest.raises(UsageError, match="no app other"):
        house.run("true", overrides={"other": AppOverrides(user="1")})
    assert house.uuids() == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system that is soon full."""
    with small_file_system(tmp_path / "small", "size=256m") as path:
        yield path


def fill(path):
    """Leaves no byte free."""
    with open(f"{path}/filler", "wb", buffering=0) as file:
        block = b"\0" * (1 << 20)
        while block:
            try:
                file.write(block)
            except OSError:
                block = block[: len(block) // 2]


@pytest.mark.full
def test_a_full_disk(make_house, small_disk, tmp_path, busybox_image):
    """Before a pod is made, before it starts, while it runs: an error, or a pod that runs on; nothing left."""
    house = make_house({"stop_timeout": 2}, state=f"{small_disk}/state", image=busybox_image)
    record, _ = house.run("true")
    house.client.rm(record.uuid)
    prepared = house.client.prepare(house.request("true"))
    fill(small_disk)
    with pytest.raises(KurmaError) as caught:
        house.client.prepare(house.request("true"))
    assert_one_line(caught.value)
    assert "No space left" in caught.value.message or "full" in caught.value.message
    assert house.uuids() == [prepared.uuid]

    with pytest.raises(KurmaError) as caught:
        house.start(prepared.uuid)
    assert_one_line(caught.value)
    assert not os.path.exists(f"/run/netns/kurma-{prepared.uuid}")
    os.unlink(f"{small_disk}/filler")
    assert house.client.pod(prepared.uuid).state in ("prepared", "errored")
    house.client.rm(prepared.uuid)

    with house.running("trap 'exit 3' TERM; while :; do echo line; sleep 0.02; done") as pod:
        until(lambda: "line" in house.log(pod), "the trap")
        fill(small_disk)
        with house.connect() as other:
            other.pods()
        pod.stop(force=False)
        try:
            pod.finish()
        except KurmaError as error:
            assert_one_line(error)
        os.unlink(f"{small_disk}/filler")
    assert house.client.pods()[0].state in ("stopped", "errored")
    assert house.state_of(pod)["steps"] == []
    house.client.rm(pod.uuid)
    assert house.uuids() == []


@pytest.mark.full
def test_a_full_disk_from_the_first_moment(make_house, small_disk, tmp_path):
    image = busybox_archive(str(tmp_path / "image"))
    house = make_house(state=f"{small_disk}/state", image=image)
    fill(small_disk)
    with pytest.raises(KurmaError) as caught:
        house.run("true")
    assert_one_line(caught.value)
    os.unlink(f"{small_disk}/filler")
    assert house.uuids() == []
    record, _ = house.run("exit 4")
    assert record.exit_code == 4
    house.client.rm(record.uuid)


@pytest.mark.full
def test_a_byte_changed_in_the_stored_stager_stops_the_next_run(make_house, tmp_path, busybox_image):
    """G1; and the file as it was is good again."""
    house = make_house(state=str(tmp_path / "state"), image=busybox_image)
    record, _ = house.run("true")
    path = f"{house.client.stager_build('default').path}/opt/stager/run"
    times = os.stat(path)
    with open(path, "r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    with pytest.raises(KurmaError) as caught:
        house.start(record.uuid)
    assert_one_line(caught.value)
    assert "opt/stager/run" in caught.value.message
    with open(path, "r+b") as file:
        file.write(first)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert house.start(record.uuid)[0].exit_code == 0
    house.client.rm(record.uuid)


@both_ways
@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_pre_start_handler_that_fails(house, ephemeral):
    """H4: what it wrote is shown, and in the log; the other app, which ran by then, is on record as ended."""
    fails = 'until [ -e /vol/up ]; do sleep 0.01; done; echo "no database"; echo "try later" >&2; exit 3'
    apps = {
        "web": shell("true", eventHandlers=[{"name": "pre-start", "exec": ["/bin/sh", "-c", fails]}]),
        "other": shell("echo other; : > /vol/up; exec sleep 1000"),
    }
    for app in apps.values():
        app["mountPoints"] = [{"name": "vol", "path": "/vol"}]
    request = house.request(apps, volumes=[{"name": "vol", "kind": "empty"}], ephemeral=ephemeral)
    lines = []
    with pytest.raises(StagerError, match="its pre-start handler exited with status 3"):
        house.foreground(lambda stdio, _: house.client.run(request, stdio, lines.append))
    assert sorted(text_of([line]) for line in lines) == ["no database\n", "other\n", "try later\n"]
    if ephemeral:
        assert house.client.pods() == []
        return
    (summary,) = house.client.pods()
    record = house.client.pod(summary.uuid)
    assert record.state == "errored"
    assert [(app.exit_code, app.reason, app.pid) for app in record.apps] == [
        (125, "start-failed", None),
        (137, "killed", None),
    ]
    assert all(app.exited and app.finished_at for app in record.apps)
    assert house.log(record, "web") == "no database\ntry later\n"
    assert house.log(record, "other") == "other\n"


def test_apps_of_a_pod_whose_stager_fails_at_its_start(foreign):
    """H4, G6: whatever its status.json said last."""
    status = '{"version": 1, "apps": {"main": {"pid": 1, "exited": false, "exitCode": null}}, "notes": []}'
    house = foreign(f"echo '{status}' > /pod/status.json; exit 7")
    with pytest.raises(StagerError):
        house.run("true")
    (summary,) = house.client.pods()
    (app,) = house.client.pod(summary.uuid).apps
    assert (app.exited, app.pid, app.reason) == (True, None, "killed")
