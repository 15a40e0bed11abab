"""Values of a wrong type in what Kurma keeps on disk: one bad record harms only what it is about (G7).

Real records are taken, and each of their values is taken away or replaced by one of another type. (In both ways,
and by more types, where records are only read: ``tests/pods/test_records_damaged.py``.) Every pod has one such
value, and all are looked at together: an error that is not told as one is a test that fails with a trace.
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import uuid as uuids

import pytest

from kurma_core.errors import KurmaError
from kurma_core.linux.cgroups import CgroupTree
from tests.kit.waiting import until
from tests.wrong_values import damaged

pytestmark = [pytest.mark.root, pytest.mark.full]


def look(house):
    """All that looks at every pod, or every image: no error at all."""
    client = house.client
    found = {record.uuid: record for record in client.pods()}
    assert {one.uuid for one in client.summaries()} == set(found)
    client.network_check()
    client.network_check(repair=True)
    client.gc(grace=10_000, dry_run=True)
    client.gc(grace=10_000)
    client.image_gc(grace=10_000, dry_run=True)
    client.images_list()
    client.usage()
    return found


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return tmp_path_factory.mktemp("samples")


def sample(house, samples):
    """The files of a pod that runs, and of the same when it has ended, and been started again."""
    here = samples / "running"
    if not here.exists():
        run = house.launch(
            "echo ready; while :; do sleep 0.02; done",
            net="default",
            isolators=[{"name": "resource/memory", "value": {"limit": "64M"}}],
            annotations=[{"name": "kurma.io/pod/restart", "value": "on-failure"}],
        )
        run.wait_output("ready")
        path = house.path(run.uuid)
        shutil.copytree(path, here, ignore=shutil.ignore_patterns("hosts", "*.lock", "upper", "work", "volumes"))
        record = f"{house.state}/networks/pods/{run.uuid}"
        shutil.copy(record, here / "joined")
        house.client.stop(run.uuid)
        run.wait()
        shutil.copy(f"{path}/state.json", samples / "ended.json")
        house.client.rm(run.uuid)
    return here


def plant(house, here, text_of):
    """A pod made of the sample's files. :param text_of: file by name, and what stands in it."""
    old = json.loads((here / "pod.json").read_text())["uuid"]
    new = str(uuids.uuid4())
    path = house.path(new)
    shutil.copytree(here, path)
    for name, value in text_of.items():
        with open(f"{path}/{name}", "w") as file:
            json.dump(value, file)
    for name in ("pod.json", "state.json", "joined"):
        with open(f"{path}/{name}") as file:
            text = file.read().replace(old, new)
        with open(f"{path}/{name}", "w") as file:
            file.write(text)
    os.rename(f"{path}/joined", f"{house.state}/networks/pods/{new}")
    return new


def remove(house, pod):
    """By force; by hand, where a plugin is named that is not there: nobody else knows how its network is left."""
    try:
        house.client.rm(pod, force=True)
    except KurmaError as error:
        if "no network plugin " not in error.message:
            raise
        shutil.rmtree(house.path(pod))
        house.client.here.services.joined.forget(pod)
        CgroupTree(f"kurma/{pod}").remove()


FILES = {"ended": "state.json", "call.json": "stager/call.json", "status.json": "pod/status.json"}


@pytest.mark.parametrize("name", ["pod.json", "state.json", "ended", "joined", "call.json", "status.json"])
def test_a_bad_record_of_a_pod(house, samples, name):
    here = sample(house, samples)
    healthy, _ = house.run("true", name="healthy")
    file = FILES.get(name, name)
    source = samples / "ended.json" if name == "ended" else here / file
    head, *lines = source.read_text().splitlines() if name == "joined" else [source.read_text()]
    planted = []
    ended = json.loads((samples / "ended.json").read_text())
    # Each value comes twice: gone, then wrong.
    each = [value for number, value in enumerate(damaged(json.loads(head))) if number % 4 in (0, 3)]
    for number, value in enumerate(each):
        files = {} if name == "joined" else {file: value}
        if name == "pod.json" and number % 8:
            files["state.json"] = ended  # which is cheap: nothing of it is taken down
        new = plant(house, here, files)
        if name == "joined":
            with open(f"{house.state}/networks/pods/{new}", "w") as out:
                out.write("\n".join([json.dumps(value), *lines]) + "\n")
        planted.append(new)
    try:
        found = look(house)
        assert found[healthy.uuid].state == "stopped"
        assert found[healthy.uuid].reason is None
        # What was not understood is told as broken, and why; the rest counts as any dead pod.
        for one in planted:
            if one in found and found[one].name == "-":
                assert " is damaged: " in found[one].reason
        client = house.client
        asks = [client.pod, functools.partial(client.stop, force=True), lambda one: list(client.logs(one))]
        for one, ask in itertools.product(planted[::5], asks):
            with contextlib.suppress(KurmaError):
                ask(one)
    finally:
        for one in planted:
            if os.path.isdir(house.path(one)):
                remove(house, one)
    assert house.uuids() == [healthy.uuid]
    until(lambda: os.listdir(f"{house.state}/networks/pods") == [], "no record of a gone pod")
