"""What the configuration has kurmad do by itself: initial pods, images fetched beforehand; reload, and the end."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from kurma_core.daemon.pods.initial import ENTRY
from kurma_core.errors import UsageError
from kurma_core.pods.record.document import RESTART_POLICY
from tests.integration.daemon.test_root_adoption import started
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.kit.images import archive, busybox_root, image_id, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.02; done"


def told_of(client):
    """What kurmad tells of itself, as JSON."""
    return client.info().to_json()["daemon"]


def web(house, script=SLEEP, **more):
    return {"name": "web", **house.template({"main": script}, **more)}


def configure(house, **config):
    path = Path(house.config_file)
    path.write_text(json.dumps({"stop_timeout": 1, **config}))


def hang_up(daemon, **config):
    """Has it read another configuration; once it has."""
    configure(daemon.house, **config)
    count = daemon.log.read_text().count("the configuration was read again")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.log.read_text().count("the configuration was read again") > count, "the reload")


def made(house):
    """State and UUID of the pods that were made for entries, by what those are known by."""
    found = {}
    for record in house.client.pods():
        for one in record.manifest.get("annotations", ()):
            if one["name"] == ENTRY:
                assert one["value"] not in found
                found[one["value"]] = record.state, record.uuid
    return found


def run(house, *names):
    """Once just these pods run: their UUIDs."""
    until(
        lambda: {name: state for name, (state, _) in made(house).items()} == dict.fromkeys(names, "running"), names
    )
    return tuple(made(house)[name][1] for name in names)


def sleeper(path, text="one"):
    root = busybox_root(f"{path}.root", {"etc/which": text})
    return archive(root, str(path), "example.com/sleeper", app=shell(SLEEP))


def test_initial_pods(kurmad, make_house, ask, tmp_path):
    house = make_house()
    image = sleeper(tmp_path / "sleeper.aci")
    configure(house, initial_pods=[image, web(house)])
    daemon = kurmad(house=house)
    first, named = run(house, image, "web")
    assert house.client.pod("web").uuid == named
    assert house.client.pod("web").restart.policy == "always"
    told = told_of(ask(daemon))
    until(
        lambda: {one["state"] for one in told_of(ask(daemon))["initialPods"]} == {"present"},
        "both told",
    )
    assert {one["name"] for one in told["initialPods"]} == {image, "web"}
    # It ends, and is started again.
    os.kill(house.client.pod("web").apps[0].pid, signal.SIGKILL)
    until(lambda: house.client.pod("web").restart.count == 1, "its being started again")
    assert run(house, image, "web") == (first, named)
    # Another daemon, and the same configuration again: nothing changes.
    daemon.end(signal.SIGKILL)
    daemon = kurmad(house=house)
    until(lambda: ask(daemon).info().daemon.recovered, "the recovery")
    hang_up(daemon, initial_pods=[image, web(house)])
    time.sleep(0.5)
    assert run(house, image, "web") == (first, named)
    # A template that has changed, and an image.
    hang_up(daemon, initial_pods=[image, web(house, f"echo new; {SLEEP}")])
    until(lambda: made(house).get("web", ("", named))[1] != named, "its being replaced")
    same, named = run(house, image, "web")
    assert same == first
    until(lambda: house.log(house.client.pod("web")) == "new\n", "the new one's word")
    sleeper(tmp_path / "sleeper.aci", "two")
    hang_up(daemon, initial_pods=[image, web(house, f"echo new; {SLEEP}")])
    until(lambda: made(house).get(image, ("", first))[1] != first, "its being replaced")
    second, same = run(house, image, "web")
    assert same == named
    assert house.enter(second, "cat", "/etc/which")[1] == "two"
    # One that somebody has stopped stays stopped.
    house.client.stop("web")
    hang_up(daemon, initial_pods=[image, web(house, f"echo new; {SLEEP}")])
    time.sleep(1.5)
    assert made(house)["web"] == ("stopped", named)
    # No other pod can say that it was made for an entry.
    annotations = [{"name": ENTRY, "value": "web"}]
    with pytest.raises(UsageError, match=f"annotation {ENTRY} is reserved for kurmad"):
        house.client.prepare(
            house.request({}, template={**house.template({"main": SLEEP}), "annotations": annotations})
        )
    # What is taken out goes.
    mine = started(daemon, SLEEP)
    hang_up(daemon, initial_pods=[])
    until(lambda: made(house) == {}, "their removal")
    assert house.uuids() == [mine]
    for uuid in (first, second, named):
        assert_nothing_left(uuid)


@pytest.mark.full
def test_files_of_variables(kurmad, make_house, tmp_path):
    """kurmad reads them again with its configuration; a pod is replaced if one has changed, and kept if one is
    missing."""
    house, file = make_house(), tmp_path / "web.env"
    file.write_text("WORD=one\n")
    entry = web(house, f"echo $WORD; {SLEEP}")
    entry["apps"][0]["environmentFiles"] = [str(file)]
    configure(house, initial_pods=[entry])
    daemon = kurmad(house=house)
    (first,) = run(house, "web")
    until(lambda: house.log(house.client.pod("web")) == "one\n", "its word")
    file.unlink()
    hang_up(daemon, initial_pods=[entry])
    until(lambda: f"{file}: cannot be read" in daemon.log.read_text(), "the missing file")
    assert run(house, "web") == (first,)
    file.write_text("WORD=two\n")
    hang_up(daemon, initial_pods=[entry])
    until(lambda: made(house).get("web", ("", first))[1] != first, "its being replaced")
    run(house, "web")
    until(lambda: house.log(house.client.pod("web")) == "two\n", "the new one's word")


@pytest.mark.full
def test_what_fails_is_tried_again_and_told(kurmad, make_house, ask, tmp_path):
    house = make_house()
    image, other = tmp_path / "sleeper.aci", tmp_path / "other.aci"
    secret = "me:hunter2@127.0.0.1:9/a.aci"
    configure(
        house,
        initial_pods=[str(image), f"nothing://{secret}"],
        prefetch_images=[str(other), f"https://{secret}"],
    )
    daemon = kurmad(house=house)

    def told():
        found = told_of(ask(daemon))
        return *found["initialPods"], *found["prefetchImages"]

    until(lambda: {one["state"] for one in told()} == {"failed"}, "the failure")
    pod, _, fetched, _ = told()
    for what in ("image https", "pod nothing"):
        daemon.wait_said(f"initial {what}://127.0.0.1:9/a.aci: ")
    shown = [daemon.log.read_text(), *(one["error"] for one in told())]
    assert not [text for text in shown if "hunter2" in text]
    assert (pod["pod"], fetched["image"]) == (None, None)
    assert f"{image}" in pod["error"]
    assert pod["next"] > "2"
    daemon.wait_said(f"initial pod {image}: ")
    daemon.wait_said(f"initial image {other}: ")
    # While it waits, it is taken out: nothing more is heard of it.
    hang_up(daemon, initial_pods=[], prefetch_images=[str(other)])
    sleeper(image)
    sleeper(other, "other")
    until(lambda: told_of(ask(daemon))["prefetchImages"][0]["state"] == "present", "the image")
    assert told_of(ask(daemon))["prefetchImages"][0]["image"] == image_id(other)
    assert image_id(other) in [one.id for one in house.client.here.images.list()]
    assert made(house) == {}
    hang_up(daemon, initial_pods=[str(image)])
    run(house, str(image))
    until(
        lambda: [one["error"] for one in told_of(ask(daemon))["initialPods"]] == [None],
        "what is told",
    )
    hang_up(daemon)
    until(lambda: made(house) == {}, "its removal")


def test_images_that_do_not_come_hold_up_no_pod_and_are_given_up(kurmad, make_house):
    """Hosts that take a connection and never answer; they are waited for longer than anything is here."""
    house = make_house()
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        silent.settimeout(20)
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        configure(house, prefetch_images=[f"{url}/{number}.aci" for number in range(5)])
        daemon = kurmad(house=house)
        held = [silent.accept()[0] for _ in range(2)]
        hang_up(daemon, initial_pods=[web(house)], prefetch_images=[f"{url}/{number}.aci" for number in range(5)])
        run(house, "web")
        # Another reload takes out what is being fetched: its connections are closed.
        hang_up(daemon, initial_pods=[web(house)])
        for each in held:
            each.settimeout(10)
            while each.recv(65536):
                continue
            each.close()
        assert "no answer in time" not in daemon.log.read_text()
    hang_up(daemon)
    until(lambda: made(house) == {}, "its removal")


@pytest.mark.full
def test_also_what_nobody_has_thought_of_is_tried_again(kurmad, make_house, busybox_image, ask, tmp_path):
    """Something else is in the place of the image store, for a while."""
    state = tmp_path / "state"
    house = make_house(state=str(state))
    configure(house)
    house.client.stager_build("default")
    house.client.here.images.fetch(busybox_image)
    daemon = kurmad(house=house)
    client = ask(daemon)
    uuid = started(daemon, "exit 0", annotations=[{"name": RESTART_POLICY, "value": "always"}])
    store = state / "images/images"
    store.rename(state / "away")
    store.write_text("in the way")
    hang_up(daemon, initial_pods=[web(house)])
    until(
        lambda: [one["state"] for one in told_of(client)["initialPods"]] == ["failed"],
        "the failure",
    )
    daemon.wait_said(f"pod {uuid} cannot be started again")
    store.unlink()
    (state / "away").rename(store)
    run(house, "web")
    count = house.client.pod(uuid).restart.count
    until(lambda: house.client.pod(uuid).restart.count > count, "its being started again")
    hang_up(daemon)
    until(lambda: made(house) == {}, "its removal")
    house.client.stop(uuid)


def test_reload(kurmad, make_house, ask):
    house = make_house()
    configure(house, initial_pods=[web(house)])
    daemon = kurmad(house=house)
    (uuid,) = run(house, "web")
    token = house.enter(uuid, "sh", "-c", "wget -q -O - $AC_METADATA_URL/acMetadata/v1/pod/uuid")
    assert token[1] == uuid
    hang_up(daemon, initial_pods=[web(house)], start_timeout=5, log={"size": "1Mi"})
    assert "the configuration was read again: new: start_timeout, log" in daemon.log.read_text()
    # What is wrong changes nothing.
    Path(house.config_file).write_text('{"initial_pods": [{"name": "No Name", "apps": []}]}')
    daemon.process.send_signal(signal.SIGHUP)
    said = "initial_pods[0].name: 'No Name' is not a valid pod name"
    until(lambda: f"kept the old configuration: {house.config_file}: {said}" in daemon.log.read_text(), "the log")
    # Nor what keeps it from taking effect.
    configure(house, initial_pods=[web(house)], start_timeout=6)
    os.chmod(house.state, 0o777)
    try:
        daemon.process.send_signal(signal.SIGHUP)
        said = f"kept the old configuration: the state directory {house.state}: users other than root"
        until(lambda: said in daemon.log.read_text(), "the log")
    finally:
        os.chmod(house.state, 0o700)
    configure(house)
    # The pod that was started before has its metadata, and a new one has, too.
    other = started(daemon, SLEEP)
    for one in (uuid, other):
        asked = "wget -q -O - $AC_METADATA_URL/acMetadata/v1/pod/uuid"
        assert house.enter(one, "sh", "-c", asked)[1] == one
    assert ask(daemon).stop(uuid).state == "stopped"
    assert ask(daemon).stop(other).state == "stopped"
    house.client.rm(uuid)


def test_networks_are_reloaded(kurmad, make_house, ask):
    house = make_house()
    daemon = kurmad(house=house)
    hang_up(daemon, container_networks=[{"name": "mine", "aci": "kurma.io/bridge"}])
    assert "container_networks" in daemon.log.read_text()
    record = ask(daemon).prepare(house.request("true", net="mine"))
    assert "mine" in [one.network for one in record.attachments]


@pytest.mark.full
def test_the_end_gives_pods_the_time_that_they_ask_for(kurmad, make_house):
    """``kurma.io/stop-timeout`` of a pod counts, also if it is longer than the configured time."""
    house = make_house({"stop_timeout": 0.1})
    daemon = kurmad("--stop-pods", house=house)
    patient = [{"name": "kurma.io/stop-timeout", "value": "60"}]
    script = "trap 'sleep 7; exit 3' TERM; echo up; while :; do sleep 0.02; done"
    uuid = started(daemon, script, annotations=patient)
    until(lambda: "up" in house.log(house.client.pod(uuid)), "the trap")
    assert daemon.end() == 0
    assert house.state_of(uuid)["exitCode"] == 3


def test_the_end_stops_pods_if_it_is_to(kurmad, make_house):
    house = make_house({"stop_timeout": 0.5})
    daemon = kurmad("--stop-pods", house=house)
    orderly = started(daemon, f"trap 'echo bye; exit 3' TERM; echo up; {SLEEP.partition(';')[2]}")
    stubborn = started(daemon, "trap '' TERM; echo up; while :; do sleep 0.02; done")
    wanted = started(daemon, SLEEP, annotations=[{"name": "kurma.io/pod/restart", "value": "on-failure"}])
    theirs = house.launch(SLEEP)
    for uuid in (orderly, stubborn):
        until(lambda uuid=uuid: "up" in house.log(house.client.pod(uuid)), "the trap")
    begun = time.monotonic()
    assert daemon.end() == 0
    assert time.monotonic() - begun < 8
    ended = {uuid: house.state_of(uuid) for uuid in (orderly, stubborn, wanted)}
    assert [state["state"] for state in ended.values()] == ["stopped"] * 3
    assert (ended[orderly]["exitCode"], ended[stubborn]["exitCode"]) == (3, 137)
    assert house.state_of(theirs.uuid)["state"] == "running", "it is its own command's"
    for uuid in ended:
        assert_nothing_left(uuid)
    second = kurmad(house=house)
    until(lambda: house.state_of(wanted)["state"] == "running", "its being started again")
    assert second.process.poll() is None
    assert {house.state_of(uuid)["state"] for uuid in (orderly, stubborn)} == {"stopped"}
    house.client.stop(theirs.uuid)
    theirs.wait()
