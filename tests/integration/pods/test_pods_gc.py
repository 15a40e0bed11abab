"""A sweep of the images never takes what a prepared or running pod uses, however they race (S3)."""

import subprocess
import sys

import pytest

from kurma_core.errors import ImageError
from kurma_core.pods.record.pod_directory import REMAINS
from tests.kit.client import open_client
from tests.kit.images import archive, busybox_root, foreign_stager, image_id, shell

pytestmark = pytest.mark.root

SWEEPER = """
import sys
import time
from kurma_core.client import Settings, connect
with connect(Settings(sys.argv[1], sys.argv[2])) as client:
    print("ready", flush=True)
    while True:
        client.image_gc(grace=0)
"""


@pytest.mark.full
def test_a_sweep_beside_pods_that_are_prepared_and_run(make_house, tmp_path):
    """What a command has found stays until its pod holds it, with nothing used before or after."""
    house = make_house({"stop_timeout": 3}, state=str(tmp_path / "state"))
    root = busybox_root(str(tmp_path / "root"))
    path = archive(root, str(tmp_path / "racing.aci"), "example.com/racing", app=shell("true"))
    command = [sys.executable, "-c", SWEEPER, house.config_file, house.state]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sweeper:
        try:
            sweeper.stdout.readline()
            for turn in range(11):
                request = house.request({"main": {"image": path}}, renderer="copy" if turn % 2 else "overlay")
                record = house.client.prepare(request)
                house.client.here.images.get(image_id(path))
                if not turn % 10:
                    assert house.start(record.uuid)[0].exit_code == 0
                house.client.rm(record.uuid)
            assert sweeper.poll() is None
        finally:
            sweeper.kill()


def test_the_image_of_a_running_pods_stager_stays(make_house, tmp_path, busybox_image):
    """Also of one that is not configured any more, and was last started long ago."""
    path = foreign_stager(str(tmp_path), "stager", "exec 4>&-; sleep 1000")
    state = str(tmp_path / "state")
    stagers = {
        "stager": "shell",
        "stagers": {"shell": {"image": path, "without_isolators": True}},
        "host_image_digests": {path: image_id(path)},
    }
    house = make_house({**stagers, "stop_timeout": 1}, state=state, image=image_id(busybox_image))
    house.client.here.images.fetch(busybox_image)
    with house.running("true"):
        make_house(state=state).client.image_gc(grace=0)
        assert set(house.client.here.images.store.ids()) == {house.image, image_id(path)}
        with pytest.raises(ImageError, match="a pod uses it"):
            house.client.image_rm(image_id(path))
    house.client.image_gc(grace=0)
    assert house.client.here.images.store.ids() == (house.image,), "the pod has ended, and may be started again"


@pytest.mark.parametrize("renderer", ["overlay", "copy"])
def test_a_dependency_that_stands_in_a_running_pod_stays_though_its_name_means_another(
    make_house, tmp_path, renderer
):
    state = str(tmp_path / "state")
    house = make_house({"stop_timeout": 1, "trust": {"named": "any"}}, state=state)
    root = busybox_root(str(tmp_path / "root"))
    empty = tmp_path / "empty"
    empty.mkdir()
    old = archive(root, str(tmp_path / "old.aci"), "example.com/base")
    app = archive(
        str(empty),
        str(tmp_path / "app.aci"),
        "example.com/app",
        app=shell("sleep 1000"),
        dependencies=[{"imageName": "example.com/base"}],
    )
    house.client.here.images.fetch(old)
    house.image = house.client.here.images.fetch(app).id
    with house.running("sleep 1000", renderer=renderer):
        root = busybox_root(str(tmp_path / "newer"), {"newer": "yes"})
        new = archive(root, str(tmp_path / "new.aci"), "example.com/base")
        house.client.here.images.fetch(new)
        house.client.image_gc(grace=0)
        assert image_id(old) in house.client.here.images.store.ids()
        with pytest.raises(ImageError, match="a pod uses it"):
            house.client.image_rm(image_id(old))
    house.client.image_gc(grace=0)
    assert image_id(old) not in house.client.here.images.store.ids(), (
        "the pod has ended, and would get the newer one"
    )


def test_an_image_that_is_used_while_pods_are_removed_stays(make_house, tmp_path, busybox_image):
    """``grace`` ends when prune begins: the removal of the pods, which comes first, may take long (19.3)."""
    house = make_house({}, state=str(tmp_path / "state"), image=image_id(busybox_image))
    house.client.here.images.fetch(busybox_image)
    root = busybox_root(str(tmp_path / "root"))
    paths = [archive(root, f"{tmp_path}/{name}.aci", f"example.com/{name}") for name in ("unused", "used")]
    unused, used = [house.client.here.images.fetch(path).id for path in paths]
    record, _ = house.run("true", ephemeral=False)
    with open(house.path(record, REMAINS), "w", encoding="utf-8") as file:
        file.write("nobody")
    notes = []

    def use(note):
        """Called while the pod is being removed."""
        notes.append(note)
        house.client.here.images.store.touch(used)

    plan = house.client.prune(all=True, dry_run=True)
    with open_client(house.config_file, house.state, note=use) as client:
        done = client.prune(all=True, only=[one.key for one in plan.removed])
    (note,) = notes
    assert "cannot free the leftovers of stager nobody" in note
    assert {one.name for one in plan.images.removed if one.kind == "image"} >= {unused, used}
    assert record.uuid in [one.name for one in done.pods.removed]
    assert unused not in house.client.here.images.store.ids()
    assert used in house.client.here.images.store.ids()
