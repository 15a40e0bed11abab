"""Writes a pod's ``/etc/hosts`` and ``/etc/resolv.conf``.

The hosts file has the pod's own lines, and those of other pods, which come and go. Each part of resolv.conf (name
servers, search domains and options) comes from the strongest source that says something of it: the networks'
results, then what the user said, then the host's own file. What comes from the host's file must work in the pod's
network namespace.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kurma_core.appc.cni_result import address_family
from kurma_core.linux.beneath import NotRegularError, open_regular
from kurma_core.models.pod import ETC_FILES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kurma_core.models.network import Attachment
    from kurma_core.pods.record.document import PodDocument


#: What a line of Kurma's ends in, in a file that an app may write to as well.
TAG = b"# kurma"
#: Bytes; a file that an app has made larger is its own affair.
LIMIT = 1 << 20
_LOCAL = ("localhost", "ip6-localhost", "ip6-loopback", "localdomain")
_HOST_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def is_host_name(name: str) -> bool:
    """Whether all resolvers look that name up, and nobody takes it for themselves, or for an address."""
    labels = name.split(".")
    return (
        0 < len(name) <= 253
        and all(
            0 < len(label) <= 63 and _HOST_NAME_LETTERS.issuperset(label) and "-" not in (label[0], label[-1])
            for label in labels
        )
        and not labels[-1].isdigit()
        and labels[-1].lower() not in _LOCAL
    )


def findable(attachments: Collection[Attachment]) -> tuple[Attachment, ...]:
    """Those of a pod's networks on which it finds others, and is found."""
    return tuple(one for one in attachments if one.names and one.interface != "lo")


def addresses_of(attachment: Attachment) -> list[str]:
    """What the pod is reached at on that network."""
    result = attachment.result
    return [] if result is None else [address.address.partition("/")[0] for address in result.addresses]


def pod_hosts(document: PodDocument, attachments: Iterable[Attachment]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """localhost, the pod's own name at its addresses, also without its domain, and what the user added."""
    lines: list[tuple[str, tuple[str, ...]]] = [
        ("127.0.0.1", ("localhost",)),
        ("::1", ("localhost", "ip6-localhost", "ip6-loopback")),
    ]
    own = [address for one in attachments if one.interface != "lo" for address in addresses_of(one)]
    if document.hostname.lower() not in _LOCAL:
        lines += [(address, _names(document.hostname)) for address in own or ["127.0.0.1"]]
    return (*lines, *document.hosts)


def replaced_files(
    document: PodDocument, registry_image: bool, attachments: Iterable[Attachment]
) -> tuple[str, ...]:
    """The files below ``/etc`` of an app in which Kurma's content takes the place of the image's.

    All, where the image comes from a registry: so do podman and docker. Of an App Container image, those that the
    user or a network says something of.
    """
    if registry_image:
        return ETC_FILES
    found = ("hosts",) if document.hosts else ()
    return (*found, "resolv.conf") if says_dns(document, attachments) else found


def _names(hostname: str) -> tuple[str, ...]:
    """The name, and that without its domain."""
    short, dot, _ = hostname.partition(".")
    return (hostname, short) if dot and is_host_name(short) else (hostname,)


def with_names(content: bytes, names: bytes, before: bytes = b"") -> bytes:
    """A hosts file with these lines of Kurma's instead of those that it has; everything else stays.

    :param names: lines that end in :data:`TAG`.
    :param before: those that are likely to be there; it is quicker where they are.
    """
    if before and content.endswith(before) and content.count(TAG) == before.count(TAG):
        kept = content[: -len(before)]
    else:
        kept = content
        if TAG in content:
            lines = content.splitlines(keepends=True)
            kept = b"".join([line for line in lines if not line.rstrip().endswith(TAG)])
    if kept and not kept.endswith(b"\n"):
        kept += b"\n"
    return kept + names


def update(directory: int, name: str, names: bytes, before: bytes | None) -> bytes:
    """Brings the hosts file ``name`` up to date, in place: it is bound into an app's root, and an app that has it
    open, or looks again, is to see it.

    Lines that come are appended in one write. Where some go, all is written at once, and what was longer is blank
    until it is cut off: whoever reads, or dies, in between leaves no half a line.

    :param before: the lines that are likely to be there; None: the file has nothing else.
    :returns: what was there.
    :raises OSError: it cannot be written. What is no plain file, or too large, is passed over.
    """
    try:
        fd = open_regular(directory, name, os.O_RDWR)
    except NotRegularError:
        return b""
    try:
        status = os.fstat(fd)
        if before is not None and status.st_size > LIMIT:
            return b""
        old = os.pread(fd, status.st_size, 0)
        new = names if before is None else with_names(old, names, before)
        if new == old:
            return old
        if new.startswith(old):
            if before is not None:
                # An app may write to it at the same time.
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
            os.pwrite(fd, new[len(old) :], len(old))
            return old
        os.pwrite(fd, new + b"\n" * (len(old) - len(new)), 0)
        os.ftruncate(fd, len(new))
        return old
    finally:
        os.close(fd)


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
    host = _read_resolv_conf(host_file)
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
        resolved = _read_resolv_conf(resolved_file)
        if resolved["nameservers"]:
            host = resolved
    reached = tuple(server for server in _unique(host["nameservers"]) if _family(server) in families)
    if servers and not reached and note is not None:
        note(
            f"the pod has no name server: the host's ({', '.join(_unique(host['nameservers']))}) cannot be reached"
            " from its network; --dns names another one"
        )
    return {**host, "nameservers": reached[:SERVERS]}


def _read_resolv_conf(path: str) -> dict[str, tuple[str, ...]]:
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
