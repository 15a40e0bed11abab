"""Pods whose cgroup is in one that another program owns (C6)."""

import os
import shutil
import signal
import uuid

import pytest

from kurma_core.daemon.pods import app_api_sockets
from kurma_core.errors import KurmaError, ManifestError
from kurma_core.linux.cgroups import CgroupTree
from tests.kit.command import one_line
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

NAME = "kurma.io/cgroup-parent"


@pytest.fixture
def parent():
    """The name of a cgroup that does not exist yet, below one of the test's own."""
    top = f"kurmatest{uuid.uuid4().hex[:8]}"
    yield f"{top}/pods"
    tree = CgroupTree(top)
    tree.kill()
    tree.remove()


def placed(house, parent, apps="sleep 1000", **options):
    return house.running(apps, annotations=[{"name": NAME, "value": parent}], **options)


def groups(pid):
    with open(f"/proc/{pid}/cgroup") as file:
        return [line.rstrip("\n").split(":", 2)[2] for line in file]


@pytest.mark.vm
def test_a_pod_in_a_parent(house, parent):
    """It is there on every hierarchy. The parents that were made for it stay."""
    limit = {"name": "resource/memory", "value": {"limit": "24Mi"}}
    wait = "trap on=1 USR1; while [ ! $on ]; do sleep 0.05; done"
    hog = shell(f"{wait}; exec tail -c 200m /dev/zero", isolators=[limit])
    with placed(house, f"/{parent}", {"main": "sleep 1000", "hog": hog}) as pod:
        record = house.client.pod(pod.uuid)
        assert record.cgroup == f"{parent}/kurma-{pod.uuid}"
        tree = CgroupTree(record.cgroup)
        assert all(map(os.path.isdir, tree.directories()))
        assert not CgroupTree(f"kurma/{pod.uuid}").exists()
        (main, _) = record.apps
        own = f"/{record.cgroup}/app-main"
        assert [path for path in groups(main.pid) if path.endswith(own)]
        assert set(tree.pids()) >= {main.pid, pod.stager.pid}
        # So kurmad knows whose request comes from a socket of its API.
        assert app_api_sockets._pods(main.pid) == {pod.uuid}
        (usage,) = house.client.usage([pod.uuid])
        assert usage.total.memory
        assert set(usage.apps) == {"main", "hog"}
        assert {one.app for one in house.client.processes(pod.uuid)} >= {"main", "hog"}
        house.client.kill(pod.uuid, signal.SIGUSR1, "hog")
        (ended,) = [one for one in until(lambda: over(house, pod), "the end of the app") if one.name == "hog"]
        assert ended.reason == "oom"
    assert not tree.exists()
    assert all(os.path.isdir(path) for path in CgroupTree(parent).directories())


def test_the_command_line_places_a_pod(kurma):
    """A systemd slice is expanded, and relative paths are refused."""
    uuid = kurma.out("prepare", "--cgroup-parent", "a-b.slice", kurma.image, "true").strip()
    try:
        assert kurma.pod(uuid)["cgroup"] == f"a.slice/a-b.slice/kurma-{uuid}"
        assert f"/a.slice/a-b.slice/kurma-{uuid}" in kurma.out("show", uuid)
    finally:
        kurma("rm", uuid)
    one_line(
        kurma("prepare", "--cgroup-parent", "../x", kurma.image, "true"),
        "annotation kurma.io/cgroup-parent: expected an absolute path",
    )


def over(house, pod):
    apps = house.client.pod(pod.uuid).apps
    return apps if any(one.exited for one in apps) else None


# --- after crashes ---------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("lost", [None, "pod.json", "all"])
def test_what_a_killed_owner_leaves_is_removed(house, parent, lost):
    """The cgroup of a pod whose record is damaged or gone is found by its name."""
    run = house.launch("sleep 1000", annotations=[{"name": NAME, "value": f"/{parent}"}])
    tree = CgroupTree(f"{parent}/kurma-{run.uuid}")
    assert tree.pids()
    run.kill()
    if lost is None:
        house.client.stop(run.uuid, force=True)
    elif lost == "pod.json":
        with open(house.path(run, "pod.json"), "w") as file:
            file.write("{")
        with pytest.raises(KurmaError, match="processes of it run"):
            house.client.rm(run.uuid)
        house.client.rm(run.uuid, force=True)
    else:
        tree.kill()
        shutil.rmtree(house.path(run))
        for name in house.names():
            os.unlink(f"{house.state}/pods/names/{name}")
        assert not house.client.gc(grace=0).failed
    assert not tree.exists()
    assert CgroupTree(parent).exists()


@pytest.mark.full
def test_a_parent_that_is_removed_meanwhile_is_made_again(house, parent):
    record = house.client.prepare(house.request("true", annotations=[{"name": NAME, "value": f"/{parent}"}]))
    for _ in range(2):
        with house.started(record) as pod:
            pod.stager.wait(30)
        tree = CgroupTree(parent)
        assert tree.exists()
        tree.remove()
    house.client.rm(record.uuid)
    refused = f"/kurma/{record.uuid}"
    with pytest.raises(ManifestError, match="Kurma's own"):
        house.client.prepare(house.request("true", annotations=[{"name": NAME, "value": refused}]))
