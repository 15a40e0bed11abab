"""Records that earlier releases have written, and what they printed of them: this version reads the same (19.1).

``./dev release`` writes them (``packaging/records.py``). Until the first release, they are of the present version:
write them anew when a format changes.
"""

import json
import shutil
from pathlib import Path

import pytest
from kurma_net_bridge.records import NetworkRecords

from kurma_core.image_store import ImageStore
from kurma_core.networking.network_records import JoinRecords
from kurma_core.pods.record.pod_record import pod_record
from kurma_core.pods.record.pod_store import PodStore
from kurma_core.staging.aci_stager import AciStager
from kurma_core.staging.callin import StagerTimes

RELEASES = sorted((Path(__file__).parent / "records").iterdir())
#: The kurmad that owned the pods is gone; the paths are those of another state directory.
GONE = ("owner", "metadata")


@pytest.fixture(params=RELEASES, ids=lambda one: one.name)
def release(request, tmp_path):
    """A copy of a state directory, and what the release printed of it."""
    shutil.copytree(request.param / "state", tmp_path / "state", symlinks=True)
    return tmp_path / "state", json.loads((request.param / "expected.json").read_text())


def known(old, new):
    """``new`` without the keys of objects that ``old`` does not have: later versions add keys."""
    if isinstance(old, dict) and isinstance(new, dict):
        # Later versions tell when the end of an app was found that no process saw.
        return {
            key: None if (key, one) == ("finishedAt", None) else known(one, new[key])
            for key, one in old.items()
            if key in new
        }
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [known(*pair) for pair in zip(old, new, strict=True)]
    return new


def test_there_is_one_release():
    assert RELEASES


def test_pods(release):
    state, expected = release
    store = PodStore(str(state))
    assert sorted(store.uuids()) == sorted(one["uuid"] for one in expected["pods"])
    assert {one["state"] for one in expected["pods"]} == {"running", "prepared", "stopped", "errored"}
    for one in expected["pods"]:
        directory = store.find(one["name"])
        found = pod_record(directory).to_json()
        assert known({**one, **dict.fromkeys(GONE)}, {**found, **dict.fromkeys(GONE)}) == one | dict.fromkeys(GONE)
        if one["state"] != "prepared":
            stager = AciStager("any", lambda: None, None, "1", StagerTimes())
            assert stager.app_verbs(directory.path) == {"add", "start", "stop", "rm"}


def test_images(release):
    state, expected = release
    store = ImageStore(str(state / "images"))
    for one in expected["images"]:
        found = store.get(one["id"]).to_json()
        shared = set(one) & set(found) - {"lastUsed", "size", "archiveSize"}  # the files are not kept
        assert {"id", "name", "labels"} <= shared
        before = {key: one[key] for key in shared}
        assert known(before, {key: found[key] for key in shared}) == before


def test_networks(release):
    state, expected = release
    records = JoinRecords(str(state))
    (web,) = [one for one in expected["pods"] if one["name"] == "web"]
    for one in expected["pods"]:
        if one["state"] == "running":
            joined = records.read(one["uuid"])
            assert joined.name == one["name"]
            assert [each.network for each in joined.attachments] == [each["network"] for each in one["networks"]]
            assert "net" in joined.made
    bridge = NetworkRecords(str(state / "plugins/kurma.networks/bridge"), "default")
    assert bridge.read().network == "default"
    (owner,) = bridge.publishers()
    assert web["uuid"] in owner
    _, ports = bridge.published(owner)
    assert [port.host_port for port in ports] == [18080]
