"""``/etc/resolv.conf`` of a pod (W10, H10).

Each of its parts, name servers, search domains and options, comes from the strongest source that says something
of it: the networks' results, then what the user said, then the host's own file. What the host's has must be of use
in the pod's network namespace, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kurma_core.appc.cni_result import address_family

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.models.network import Attachment
    from kurma_core.pods.document import PodDocument

Dns = Mapping[str, tuple[str, ...]]
PARTS = ("nameservers", "search", "options")
HOST_FILE = "/etc/resolv.conf"
#: Where systemd-resolved says which servers it asks itself; and its own addresses, which only the host reaches.
RESOLVED_FILE = "/run/systemd/resolve/resolv.conf"
_STUBS = ("127.0.0.53", "127.0.0.54")
#: What resolvers read at most: glibc and musl take three servers. Domains: as many as Kubernetes allows.
SERVERS, DOMAINS = 3, 32
_OF_A_LINK = ("fe8", "fe9", "fea", "feb")
#: IPv4's of a link. Clouds have their name servers there (169.254.169.254), and a host leads pods to them.
_OF_A_LINK_V4 = "169.254."
#: An option that says something of the host's own servers, and of no others.
_OF_THE_HOST = ("trust-ad",)


def parse_resolv_conf(text: str) -> dict[str, tuple[str, ...]]:
    """``nameservers``, ``search`` and ``options`` of a resolv.conf(5). What is none of these is passed over."""
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


def says_dns(document: PodDocument, attachments: Iterable[Attachment]) -> bool:
    """Whether the user or a network says something of name servers, search domains or options."""
    said = document.dns is not None and any(document.dns.values())
    results = [one.result for one in attachments if one.result is not None]
    return said or any(getattr(result, part) for result in results for part in PARTS)


def pod_dns(
    document: PodDocument,
    attachments: Iterable[Attachment],
    note: Callable[[str], None],
    host_file: str = HOST_FILE,
    resolved_file: str = RESOLVED_FILE,
) -> Dns:
    """What the pod's resolv.conf says.

    :param attachments: with their results.
    :param note: told what the user should know: a server that was asked for and is not used, or that none is left.
    :returns: ``nameservers``, ``search`` and ``options``; each may be empty.
    """
    joined = [one for one in attachments if one.result is not None and one.interface != "lo"]
    found = {part: _unique(v for one in joined for v in getattr(one.result, part)) for part in PARTS}
    said = document.dns or {}
    if found["nameservers"] and said.get("nameservers"):
        names = ", ".join(sorted({one.network for one in joined if one.result and one.result.nameservers}))
        note(f"--dns is not used: the name servers are those that network {names} names")
    for part in PARTS:
        found[part] = found[part] or _unique(said.get(part, ()))
    host = _read(host_file)
    if not document.host_network:
        for server in found["nameservers"] if found["nameservers"] == _unique(said.get("nameservers", ())) else ():
            if why := _out_of_reach(server, _families(joined)):
                note(f"--dns {server}: {why}")
        host = _of_use(host, joined, resolved_file, None if found["nameservers"] else note)
    if found["nameservers"] or not host["nameservers"]:
        host["options"] = tuple(option for option in host["options"] if option not in _OF_THE_HOST)
    given = {part: found[part] or host[part] for part in PARTS}
    if document.host_network and not document.dns:
        return given  # as the host has it
    if len(given["nameservers"]) > SERVERS:
        left = ", ".join(given["nameservers"][SERVERS:])
        note(f"resolvers ask no more than {SERVERS} name servers: {left} is left out")
    # "." alone asks for no search at all.
    search = () if given["search"] == (".",) else given["search"][:DOMAINS]
    return {**given, "nameservers": given["nameservers"][:SERVERS], "search": search}


def _of_use(
    host: dict[str, tuple[str, ...]],
    joined: list[Attachment],
    resolved_file: str,
    note: Callable[[str], None] | None,
) -> dict[str, tuple[str, ...]]:
    """What of the host's own is of use in a network namespace with these networks.

    :param note: None: its servers are not asked for.
    """
    families = _families(joined)
    if not families:
        return dict.fromkeys(PARTS, ())  # it reaches nobody
    servers = host["nameservers"]
    if servers and all(_is_loopback(server) for server in servers) and any(one in _STUBS for one in servers):
        resolved = _read(resolved_file)
        if resolved["nameservers"]:
            host = resolved
    reached = tuple(server for server in _unique(host["nameservers"]) if _family(server) in families)
    if servers and not reached and note is not None:
        note(
            f"the pod has no name server: the host's ({', '.join(_unique(host['nameservers']))}) cannot be reached"
            " from its network; --dns names another one"
        )
    return {**host, "nameservers": reached[:SERVERS]}


def _read(path: str) -> dict[str, tuple[str, ...]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return parse_resolv_conf(stream.read(1 << 20))
    except OSError:
        return parse_resolv_conf("")


def _families(joined: Iterable[Attachment]) -> set[int]:
    """Of the addresses by which the pod reaches more than its own link."""
    addresses = [a.address.partition("/")[0] for one in joined if one.result for a in one.result.addresses]
    return {_family(address) for address in addresses if not address.startswith(_OF_A_LINK_V4)} - {0}


def _family(address: str) -> int:
    """4 or 6; 0 for what is no address, and for one that means something else in another namespace: of loopback,
    of a single link of IPv6, or with a zone."""
    return 0 if _is_loopback(address) or address.lower().startswith(_OF_A_LINK) else address_family(address)


def _out_of_reach(server: str, families: set[int]) -> str | None:
    """Why a pod with addresses of these families does not reach that name server; None: it may."""
    if _is_loopback(server):
        return "that is the pod's own loopback, not the host's: only an app of the pod can answer there"
    if server.lower().startswith(_OF_A_LINK):
        return "an address of a single link is not reached without the name of its interface"
    if families and address_family(server) not in families:
        return f"the pod has no IPv{address_family(server)} address to reach it from"
    return None


def _is_loopback(address: str) -> bool:
    """``0.0.0.0`` stands for this host, too, where a resolver reads it."""
    return address.startswith(("127.", "0.", "::ffff:127.")) or address in ("::1", "::")


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
