"""What pods have on the host is on record: an earlier run's goes with the next one, a stranger's stays."""

import os
import uuid

import pytest
from kurma_testing.networks import pod_namespace

from kurma_core.errors import HostError
from kurma_core.linux import namespaces
from kurma_core.networking.network_records import JoinRecords

pytestmark = pytest.mark.root


@pytest.fixture
def pod():
    return str(uuid.uuid4())


@pytest.fixture
def records(tmp_path):
    return JoinRecords(str(tmp_path))


def made(records, pod, kinds=("net",)):
    """A namespace that is on record, pinned in the pod's place; its owner is killed without a word."""
    records.begin(pod, "web", (), kinds)
    with pod_namespace(pod) as path:
        other = f"{path}-held"
        namespaces.pin(path, other)
    namespaces.pin(other, path)
    namespaces.unpin(other)
    records.made(pod, "net")
    return path


@pytest.mark.parametrize("again", ["as it was", "without it"])
def test_an_earlier_runs_namespace_is_let_go_of(records, tmp_path, pod, again):
    """Also where this one makes none."""
    path = made(records, pod)
    assert namespaces.is_pinned(path)
    later = JoinRecords(str(tmp_path))
    assert tuple(later.begin(pod, "web", (), ("net",) if again == "as it was" else ())) == ()
    assert not os.path.lexists(path)
    record = later.read(pod)
    assert record is not None
    assert record.made == {}


def test_what_this_process_has_made_for_the_pod_to_come_stays(records, pod):
    path = made(records, pod)
    try:
        assert tuple(records.begin(pod, "web", (), ("net",), kept=("net",))) == ("net",)
        assert namespaces.is_pinned(path)
        record = records.read(pod)
        assert record is not None
        assert record.made == {"net": os.stat(path).st_ino}
    finally:
        records.release(pod, "net")
    assert not os.path.lexists(path)


def test_a_strangers_namespace_in_the_pods_place_stays(records, tmp_path, pod):
    """Whoever lets go of the pod's, by whatever record: without one, of another namespace, of another boot."""
    path = made(records, pod)
    namespaces.unpin(path)
    with pod_namespace(pod):
        mine = os.stat(path).st_ino
        # The kernel gives numbers again.
        with open(records.path(pod), "a") as file:
            file.write(f"net {mine + 1}\n")
        for each in (JoinRecords(str(tmp_path)), JoinRecords(str(tmp_path / "another"))):
            each.release(pod, "net")
            assert os.stat(path).st_ino == mine
            with pytest.raises(HostError, match="something that is not this pod's exists there"):
                each.begin(pod, "web", (), ("net",))
            assert os.stat(path).st_ino == mine
        with open(records.path(pod)) as file:
            text = file.read()
        with open(records.path(pod), "w") as file:
            file.write(text.replace('"boot": "', '"boot": "f').replace(f"net {mine + 1}", f"net {mine}"))
        JoinRecords(str(tmp_path)).release(pod, "net")
        assert os.stat(path).st_ino == mine
