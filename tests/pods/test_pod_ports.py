"""Which published ports clash (W9)."""

import os
import threading

import pytest

from kurma_core.appc.pod import PodManifest
from kurma_core.errors import NetworkError
from kurma_core.models import Attachment, IsolatorPlan, NetworkRequest, PortMapping
from kurma_core.pod_store import PodStore
from kurma_core.pods.document import PodDocument
from kurma_core.pods.listeners import Listener
from kurma_core.pods.ports import check_free, claimed

UUID = "aaaa0000-0000-4000-8000-000000000001"
HTTP = PortMapping(80, 8080)


def nobody(protocol, port, address):
    return None


@pytest.fixture
def store(tmp_path):
    return PodStore(str(tmp_path))


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
    document = PodDocument(
        uuid=uuid,
        name="web",
        created_at="t",
        manifest=PodManifest(apps=()),
        mounts={},
        plans={},
        pod_plan=IsolatorPlan(),
        isolators=(),
        notes=(),
        stager="s",
        renderer="r",
        attachments=(network,),
        host_network=False,
        hostname="web",
    )
    directory, lock = store.create(uuid, "web")
    os.close(lock)
    directory.write_pod(document.to_json())
    directory.write_state({"state": state, "steps": list(steps)})
    return directory


@pytest.mark.parametrize(
    ("state", "steps", "holds"),
    [
        ("starting", (), True),
        ("running", (), True),
        ("stopping", (), True),
        ("errored", ("networks",), True),  # nobody has taken it down yet
        ("prepared", (), False),
        ("exited", (), False),
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


def test_a_pod_that_cannot_be_read_holds_nothing(store):
    directory = another(store, HTTP, state="running")
    with open(directory.file("pod.json"), "w") as file:
        file.write("nonsense")
    check_free(store, UUID, (HTTP,), nobody)


def test_one_claims_at_a_time(store):
    """Who comes meanwhile sees what the first has put on record."""
    os.makedirs(store.root)
    found = []

    def claim():
        try:
            with claimed(store, UUID, (PortMapping(61234, 80),)):
                found.append("had it")
        except NetworkError as error:
            found.append(error.message)

    other = PortMapping(61234, 81)
    with claimed(store, "another", (other,)):
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join(0.2)
        assert found == []
        another(store, other, state="starting")
    thread.join(10)
    assert found == ["port 61234/tcp of the host leads to pod web already"]


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
