"""resolv.conf and hosts of a pod."""

from __future__ import annotations

from pathlib import Path

from kurma_core.appc.pod import PodManifest
from kurma_core.models import AddressResult, Attachment, IsolatorPlan, NetworkRequest, NetworkResult
from kurma_core.pods.dns import parse_resolv_conf, pod_dns, pod_hosts
from kurma_core.pods.document import PodDocument
from kurma_core.value import replace

LO = Attachment("lo", "lo", "lo", {}, NetworkRequest("lo"))
ETH = Attachment(
    "net", "cni", "eth0", {}, NetworkRequest("net"), result=NetworkResult((AddressResult("10.1.2.3/16"),))
)
DOCUMENT = PodDocument(
    uuid="u",
    name="n",
    created_at="t",
    manifest=PodManifest(apps=()),
    mounts={},
    plans={},
    pod_plan=IsolatorPlan(),
    isolators=(),
    notes=(),
    stager="s",
    renderer="r",
    attachments=(LO, ETH),
    host_network=False,
    hostname="here",
)


def host_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "resolv.conf"
    path.write_text(text)
    return str(path)


def test_resolv_conf_is_read_as_resolvers_do() -> None:
    text = "# c\nnameserver 1.1.1.1 ; x\nsearch a b\noptions ndots:2\nnameserver\ndomain c\n"
    assert parse_resolv_conf(text) == {"nameservers": ("1.1.1.1",), "search": ("c",), "options": ("ndots:2",)}


def test_strength(tmp_path: Path) -> None:
    """W10: the CNI result, then what the user said, then the host's, then none."""
    host = host_file(tmp_path, "nameserver 127.0.0.53\nnameserver 9.9.9.9\n")
    dns = replace(ETH, result=NetworkResult((), nameservers=("10.0.0.1",)))
    said = replace(DOCUMENT, dns={"nameservers": ("8.8.8.8",), "search": (), "options": ()})
    assert pod_dns(said, (LO, dns), host)["nameservers"] == ("10.0.0.1",)
    assert pod_dns(said, (LO, ETH), host)["nameservers"] == ("8.8.8.8",)
    assert pod_dns(DOCUMENT, (LO, ETH), host)["nameservers"] == ("9.9.9.9",)
    assert pod_dns(replace(DOCUMENT, attachments=(LO,)), (LO,), host)["nameservers"] == ()
    shared = replace(DOCUMENT, attachments=(), host_network=True)
    assert pod_dns(shared, (), host)["nameservers"] == ("127.0.0.53", "9.9.9.9")
    assert pod_dns(DOCUMENT, (LO, ETH), str(tmp_path / "none"))["nameservers"] == ()


def test_hosts_has_the_pods_own_name_at_its_addresses() -> None:
    document = replace(DOCUMENT, hosts=(("10.9.9.9", ("db",)),))
    assert ("10.1.2.3", ("here",)) in pod_hosts(document, (LO, ETH))
    assert pod_hosts(document, (LO, ETH))[-1] == ("10.9.9.9", ("db",))
    assert ("127.0.0.1", ("here",)) in pod_hosts(replace(document, attachments=(LO,)), (LO,))


def test_the_document_survives_the_disk() -> None:
    document = replace(
        DOCUMENT,
        dns={"nameservers": ("1.1.1.1",), "search": (), "options": ()},
        plans={"a": IsolatorPlan(capabilities=("CAP_CHOWN",), rlimits={"nofile": (1, 2)}, seccomp=b"program!")},
        hosts=(("1.2.3.4", ("x", "y")),),
        environment={"a": (("K", "V"),)},
    )
    assert PodDocument.from_json(document.to_json()) == document
