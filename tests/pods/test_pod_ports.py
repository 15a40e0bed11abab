"""Which published ports clash (W9)."""

import json
import os
import threading

import pytest

from kurma_core.errors import NetworkError
from kurma_core.models.network import Attachment, NetworkRequest, PortMapping
from kurma_core.pods.network import port_claims as claiming
from kurma_core.pods.network.port_claims import Claim, Claims, check_free, claimed
from kurma_core.pods.network.port_listeners import Listener
from kurma_core.pods.record.pod_store import PodStore
from kurma_core.pods.record.state import PodState
from tests.pods.documents import pod_document

UUID = "aaaa0000-0000-4000-8000-000000000001"
HTTP = PortMapping(80, 8080)


def nobody(protocol, port, address):
    return None


@pytest.fixture
def store(tmp_path):
    return PodStore(str(tmp_path / "state"))


@pytest.fixture
def claims(tmp_path):
    return Claims(str(tmp_path / "claims"))


@pytest.mark.parametrize(
    "other",
    [
        PortMapping(80, 1),
        PortMapping(80, 1, host_ip="127.0.0.1"),
        PortMapping(80, 1, host_ip="0.0.0.0"),
        PortMapping(80, 1, host_ip="::"),
    ],
)
def test_clashes(store, other):
    with pytest.raises(NetworkError, match="80/tcp of the host is published twice"):
        check_free(store, UUID, (HTTP, other), nobody)


@pytest.mark.parametrize("other", [PortMapping(81, 8080), PortMapping(80, 8080, "udp")])
def test_does_not_clash(store, other):
    check_free(store, UUID, (HTTP, other), nobody)


def at(*addresses):
    return tuple(PortMapping(80, 1, host_ip=address) for address in addresses)


@pytest.mark.parametrize(
    "addresses", [("127.0.0.1", "127.0.0.2"), ("0.0.0.0", "::"), ("0.0.0.0", "::1"), ("::", "127.0.0.1")]
)
def test_addresses_of_their_own(store, addresses):
    check_free(store, UUID, at(*addresses), nobody)


@pytest.mark.parametrize("addresses", [("::1", "0:0:0:0:0:0:0:1"), ("::", "fd00::1"), ("0.0.0.0", "10.0.0.1")])
def test_addresses_that_are_the_same(store, addresses):
    with pytest.raises(NetworkError, match="published twice"):
        check_free(store, UUID, at(*addresses), nobody)


def another(store, *ports, state, steps=()):
    """A pod called ``web`` that has these ports, in that state; its directory."""
    uuid = "bbbb0000-0000-4000-8000-000000000002"
    network = Attachment("net", "bridge", "eth0", {}, NetworkRequest("net"), ports=ports)
    pod = pod_document(uuid=uuid, name="web", attachments=(network,), hostname="web")
    directory, lock = store.create(uuid, "web")
    os.close(lock)
    directory.write_pod(pod)
    directory.write_state(PodState(state, tuple(steps)))
    return directory


@pytest.mark.parametrize(
    ("state", "steps", "holds"),
    [
        ("starting", (), True),
        ("running", (), True),
        ("stopping", (), True),
        ("errored", ("networks",), True),  # nobody has taken it down yet
        ("prepared", (), False),
        ("preparing", ("cgroup", "network-namespace"), False),  # prestarted: it claims its ports when it starts
        ("stopped", (), False),
        ("errored", (), False),
    ],
)
def test_the_pod_that_has_the_port_is_named(store, state, steps, holds):
    directory = another(store, HTTP, PortMapping(443, 1, host_ip="::1"), state=state, steps=steps)
    for wanted in (HTTP, PortMapping(443, 2, host_ip="0:0::1")):
        if not holds:
            check_free(store, UUID, (wanted,), nobody)
            continue
        with pytest.raises(NetworkError, match=r"of the host leads to pod web already") as caught:
            check_free(store, UUID, (wanted,), nobody)
        assert caught.value.hint.endswith(f"kurma stop {directory.uuid[:8]}")
    check_free(store, directory.uuid, (HTTP,), nobody)
    check_free(store, UUID, (PortMapping(443, 1, host_ip="127.0.0.1"), PortMapping(80, 1, "udp")), nobody)


def leave_remains(directory):
    os.makedirs(directory.file("stager"))
    with open(directory.file("stager/remains"), "w") as file:
        file.write("rkt:/srv/stage1.aci\n")


@pytest.mark.parametrize("state", ["stopped", "errored"])
def test_rules_that_a_stage1_keeps_until_its_gc_lead_to_a_pod_that_has_ended(store, state):
    directory = another(store, HTTP, state=state)
    check_free(store, UUID, (HTTP,), nobody)
    leave_remains(directory)
    with pytest.raises(
        NetworkError, match=r"80/tcp of the host leads to pod web still, which has ended$"
    ) as caught:
        check_free(store, UUID, (HTTP,), nobody)
    assert caught.value.hint.endswith(f"kurma rm {directory.uuid[:8]}")
    check_free(store, directory.uuid, (HTTP,), nobody)
    directory.write_state(PodState("prepared"))
    check_free(store, UUID, (HTTP,), nobody)


def test_a_pod_that_cannot_be_read_holds_nothing(store):
    directory = another(store, HTTP, state="running")
    with open(directory.file("pod.json"), "w") as file:
        file.write("nonsense")
    check_free(store, UUID, (HTTP,), nobody)


def test_one_claims_at_a_time(store, claims):
    """Who comes meanwhile sees what the first has put on record."""
    os.makedirs(store.root)
    found = []

    def claim():
        try:
            with claimed(store.directory(UUID), store, "late", (PortMapping(61234, 80),), claims):
                found.append("had it")
        except NetworkError as error:
            found.append(error.message)

    other = PortMapping(61234, 81)
    with claimed(store.directory("another"), store, "first", (other,), claims):
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join(0.2)
        assert found == []
        another(store, other, state="starting")
    thread.join(10)
    assert found == ["port 61234/tcp of the host leads to pod web already"]


class Elsewhere:
    """A pod ``web`` of another state directory that has claimed its port, in that state."""

    def __init__(self, tmp_path, claims):
        self.claims = claims
        self.state_dir = str(tmp_path / "other")
        self.store = PodStore(self.state_dir)
        self.directory = another(self.store, HTTP, state="prepared")
        with claimed(self.directory, self.store, "web", (HTTP,), claims):
            self.is_now("starting")
        (name,) = [name for name in os.listdir(claims._place) if not name.startswith(".")]
        self.file = f"{claims._place}/{name}"

    def is_now(self, state, steps=()):
        self.directory.write_state(PodState(state, tuple(steps)))

    def write(self, **changes):
        with open(self.file) as file:
            value = json.load(file)
        with open(self.file, "w") as file:
            json.dump({**value, **changes}, file)


@pytest.fixture
def elsewhere(tmp_path, claims):
    return Elsewhere(tmp_path, claims)


def refused(store, claims, port=HTTP, uuid=UUID):
    """Why a pod of ``store`` may not have that port; None: it may."""
    try:
        with claimed(store.directory(uuid), store, "mine", (port,), claims):
            claims.drop(store.directory(uuid).path)
    except NetworkError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("state", "steps", "holds"),
    [
        ("starting", (), True),
        ("running", (), True),
        ("stopping", (), True),
        ("errored", ("networks",), True),
        ("prepared", (), False),
        ("preparing", ("cgroup", "network-namespace"), False),  # prestarted: it claims its ports when it starts
        ("stopped", (), False),
    ],
)
def test_a_pod_of_another_state_directory_is_named(store, claims, elsewhere, state, steps, holds):
    elsewhere.is_now(state, steps)
    if not holds:
        check_free(store, UUID, (HTTP,), nobody, claims)
        assert os.path.exists(elsewhere.file), "only who has the lock sweeps"
        assert refused(store, claims) is None
        assert not os.path.exists(elsewhere.file)
        return
    with pytest.raises(NetworkError, match="80/tcp of the host leads to pod web already"):
        check_free(store, UUID, (HTTP,), nobody, claims)
    error = refused(store, claims)
    assert error.message.endswith(f"to pod web already, of the state directory {elsewhere.state_dir}")
    assert error.hint.endswith(f"kurma --dir {elsewhere.state_dir} stop {elsewhere.directory.uuid[:8]}")
    assert os.listdir(claims._place).count(os.path.basename(elsewhere.file)) == 1
    assert refused(store, claims, PortMapping(81, 1)) is None
    assert refused(elsewhere.store, claims, uuid=elsewhere.directory.uuid) is None, "its own claim"


class ListedBefore(PodStore):
    """Lists the pods that there were before the first was made."""

    def uuids(self):
        return []


def test_a_pod_that_was_made_since_the_pods_were_listed_is_of_the_same_state_directory(claims, elsewhere):
    store = ListedBefore(elsewhere.state_dir)
    with pytest.raises(NetworkError, match=r"80/tcp of the host leads to pod web already$") as caught:
        check_free(store, UUID, (HTTP,), nobody, claims)
    assert caught.value.hint == f"choose another port, or: kurma stop {elsewhere.directory.uuid[:8]}"


def test_a_pod_of_another_state_directory_that_has_ended_and_left_something(store, claims, elsewhere):
    leave_remains(elsewhere.directory)
    elsewhere.is_now("stopped")
    error = refused(store, claims)
    assert error.message.endswith(
        f"to pod web still, which has ended, of the state directory {elsewhere.state_dir}"
    )
    assert error.hint.endswith(f"kurma --dir {elsewhere.state_dir} rm {elsewhere.directory.uuid[:8]}")
    os.unlink(elsewhere.directory.file("stager/remains"))
    assert refused(store, claims) is None
    assert not os.path.exists(elsewhere.file)


def test_claims_that_hold_nothing(store, claims, elsewhere):
    for changes in ({"boot": "an earlier one"}, {"ports": 7}):
        elsewhere.is_now("running")
        assert refused(store, claims) is not None
        elsewhere.write(**changes)
        assert refused(store, claims) is None
        assert not os.path.exists(elsewhere.file)
        with claimed(elsewhere.directory, elsewhere.store, "web", (HTTP,), claims):
            pass
    for changes in ({"network": 1}, {"version": 2}):
        elsewhere.write(**changes)
        assert refused(store, claims) is None
        assert os.path.exists(elsewhere.file), "of another network namespace, or a newer Kurma: not ours to judge"


def test_a_pod_whose_record_is_gone_holds_its_ports_by_its_namespace(store, claims, elsewhere, monkeypatch):
    elsewhere.is_now("running")
    os.rename(elsewhere.state_dir, f"{elsewhere.state_dir}-moved")
    with monkeypatch.context() as patch:
        patch.setattr(claiming, "pin_path", lambda kind, uuid: f"/proc/self/ns/{kind}")
        error = refused(store, claims)
        assert error.hint.endswith(f"kurma --dir {elsewhere.state_dir} gc")
        moved = PodStore(f"{elsewhere.state_dir}-moved")
        assert refused(moved, claims, uuid=elsewhere.directory.uuid) is None, "its state directory was moved"
    assert refused(store, claims) is None
    assert not os.path.exists(elsewhere.file)


def test_a_damaged_record_is_not_for_others_to_judge(store, claims, elsewhere):
    with open(elsewhere.directory.file("state.json"), "w") as file:
        file.write("nonsense")
    assert refused(store, claims) is not None


def test_a_claim_goes_with_a_start_that_fails(store, claims):
    def failing():
        with claimed(store.directory(UUID), store, "mine", (PortMapping(61234, 80),), claims):
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        failing()
    assert os.listdir(claims._place) == [".lock"]
    claims.drop(store.directory(UUID).path)
    with claims.locked():
        claims.make(Claim(store.directory(UUID).path, "mine", (HTTP,)))
    claims.drop(store.directory(UUID).path)
    assert os.listdir(claims._place) == [".lock"]


def test_a_port_that_somebody_listens_on(store):
    asked = []

    def listener(protocol, port, address):
        asked.append((protocol, port, address))
        return Listener("::", 81, "udp", "dnsmasq (process 7)") if port == 81 else None

    ports = (PortMapping(80, 1, host_ip="127.0.0.1"), PortMapping(81, 2, "udp"))
    with pytest.raises(NetworkError) as caught:
        check_free(store, UUID, ports, listener)
    assert caught.value.message == (
        "port 81/udp of the host is in use by dnsmasq (process 7), which listens on [::]:81"
    )
    assert caught.value.hint
    assert asked == [("tcp", 80, "127.0.0.1"), ("udp", 81, "")]


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9"])
def test_an_address_that_the_host_has_not(store, claims, address):
    """It may come before the pod is started, so that a prepared one may name it."""
    os.makedirs(store.root)
    port = PortMapping(61235, 80, host_ip=address)
    check_free(store, UUID, (port,), nobody, claims)
    with pytest.raises(
        NetworkError, match=f"cannot be published: no interface of the host has the address {address}$"
    ) as caught:
        with claimed(store.directory(UUID), store, "web", (port,), claims):
            pytest.fail("it was claimed")
    assert "ip_nonlocal_bind" in caught.value.hint
    assert refused(store, claims, PortMapping(61235, 80)) is None
    for here in ("127.0.0.1", "127.9.9.9", "0.0.0.0", "::"):
        assert refused(store, claims, PortMapping(61235, 80, host_ip=here)) is None
