"""``/etc/resolv.conf`` and ``/etc/hosts`` of a pod (W10, H10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.models import Attachment
    from kurma_core.pods.document import PodDocument

Dns = Mapping[str, tuple[str, ...]]


def parse_resolv_conf(text: str) -> dict[str, tuple[str, ...]]:
    """``nameservers``, ``search`` and ``options`` of a resolv.conf(5)."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        words = line.split("#")[0].split(";")[0].split()
        if len(words) < 2:
            continue
        if words[0] == "nameserver":
            servers.append(words[1])
        elif words[0] in ("search", "domain"):
            search = tuple(words[1:])
        elif words[0] == "options":
            options += words[1:]
    return {"nameservers": tuple(servers), "search": search, "options": tuple(options)}


def pod_dns(document: PodDocument, attachments: Iterable[Attachment], host_file: str = "/etc/resolv.conf") -> Dns:
    """From the networks' results, else what the user said, else the host's.

    A host's resolver on a loopback address is of no use inside a network namespace of the pod's own; it is left
    out there, and where nothing else remains the pod has no name server.
    """
    results = [attachment.result for attachment in attachments if attachment.result is not None]
    given = [result for result in results if result.nameservers]
    if given:
        return {
            "nameservers": tuple(server for result in given for server in result.nameservers),
            "search": tuple(domain for result in given for domain in result.search),
            "options": tuple(option for result in given for option in result.options),
        }
    if document.dns is not None:
        return document.dns
    try:
        with open(host_file, encoding="utf-8", errors="replace") as stream:
            host = parse_resolv_conf(stream.read())
    except OSError:
        host = parse_resolv_conf("")
    if document.host_network:
        return host
    reachable = tuple(s for s in host["nameservers"] if not s.startswith("127.") and s != "::1")
    if not [a for a in document.attachments if a.interface != "lo"]:
        reachable = ()
    return {**host, "nameservers": reachable}


def pod_hosts(document: PodDocument, attachments: Iterable[Attachment]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """localhost, the pod's own name at its addresses, and what the user added."""
    lines: list[tuple[str, tuple[str, ...]]] = [
        ("127.0.0.1", ("localhost",)),
        ("::1", ("localhost", "ip6-localhost", "ip6-loopback")),
    ]
    own = [
        address.address.partition("/")[0]
        for attachment in attachments
        if attachment.result is not None and attachment.interface != "lo"
        for address in attachment.result.addresses
    ]
    lines += [(address, (document.hostname,)) for address in own or ["127.0.0.1"]]
    return (*lines, *document.hosts)
