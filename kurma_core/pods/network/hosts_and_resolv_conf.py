"""Writes a pod's ``/etc/hosts`` and ``/etc/resolv.conf``.

The hosts file holds the pod's own lines and the lines of other pods, which change while the pod runs. Each part of
resolv.conf (name servers, search domains and options) comes from the first source that sets it: the results of the
networks, then the user's options, then the host's own file. Values from the host's file are used only if they work
in the pod's network namespace. The user may also demand that the file has the user's settings alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kurma_core.appc.types import address_family
from kurma_core.linux.beneath import NotRegularError, open_regular
from kurma_core.models.pod import ETC_FILES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kurma_core.models.network import Attachment
    from kurma_core.pods.record.document import PodDocument


#: Ends each line that Kurma writes to a hosts file; an app may write lines of its own to the same file.
TAG = b"# kurma"
#: Bytes. A larger hosts file is left unchanged: only the app can have made it that large.
LIMIT = 1 << 20
_LOCAL = ("localhost", "ip6-localhost", "ip6-loopback", "localdomain")
_HOST_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def is_host_name(name: str) -> bool:
    """Whether all resolvers look that name up in DNS or the hosts file; false for addresses and for ``localhost``
    and its like."""
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
    """The networks of a pod on which it can look up other pods by name, and they it."""
    return tuple(one for one in attachments if one.names and not one.base)


def addresses_of(attachment: Attachment) -> list[str]:
    """The pod's addresses on that network, without prefix length."""
    result = attachment.result
    return [] if result is None else [address.address.partition("/")[0] for address in result.addresses]


def pod_hosts(document: PodDocument, attachments: Iterable[Attachment]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Lines for localhost, for the pod's hostname at each of its addresses (with and without its domain), and the
    lines that the user added."""
    lines: list[tuple[str, tuple[str, ...]]] = [
        ("127.0.0.1", ("localhost",)),
        ("::1", ("localhost", "ip6-localhost", "ip6-loopback")),
    ]
    own = [address for one in attachments if not one.base for address in addresses_of(one)]
    if document.hostname.lower() not in _LOCAL:
        lines += [(address, _names(document.hostname)) for address in own or ["127.0.0.1"]]
    return (*lines, *document.hosts)


def replaced_files(document: PodDocument, all_files: bool, attachments: Iterable[Attachment]) -> tuple[str, ...]:
    """The files below ``/etc`` of an app in which Kurma's content replaces the image's.

    :param all_files: the app's image expects all of them. Otherwise only the files that the user or a network sets
        something for.
    """
    if all_files:
        return ETC_FILES
    found = ("hosts",) if document.hosts else ()
    return (*found, "resolv.conf") if says_dns(document, attachments) else found


def _names(hostname: str) -> tuple[str, ...]:
    """The host name, and its first label if it has a domain."""
    short, dot, _ = hostname.partition(".")
    return (hostname, short) if dot and is_host_name(short) else (hostname,)


def with_names(content: bytes, names: bytes, before: bytes = b"") -> bytes:
    """A hosts file in which ``names`` replace the lines that end in :data:`TAG`; all other lines are kept.

    :param names: lines that end in :data:`TAG`.
    :param before: the Kurma lines that the file probably ends with; a match avoids a search of the whole file.
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
    """Updates the hosts file ``name`` in place, since it is bind-mounted into an app's root: a new file would not
    be seen there.

    New lines are appended in one write. If lines are removed, the whole content is written at once, padded with
    blank lines to the old length, and then truncated: a reader, or a crash, in between never sees half a line.

    :param before: the Kurma lines that the file probably has; None: the file has no other lines.
    :returns: the previous content.
    :raises OSError: it cannot be written. A file that is not regular, or too large, is skipped.
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
#: Names the servers that systemd-resolved forwards to; and its own stub addresses, which only the host can reach.
RESOLVED_FILE = "/run/systemd/resolve/resolv.conf"
_STUBS = ("127.0.0.53", "127.0.0.54")
#: Limits of resolvers: glibc and musl read three servers; orchestrators allow 32 domains.
SERVERS, DOMAINS = 3, 32
_OF_A_LINK = ("fe8", "fe9", "fea", "feb")
#: Link-local IPv4. Clouds have their name servers there (169.254.169.254), and the host forwards pods' packets to
#: them.
_OF_A_LINK_V4 = "169.254."
#: Options that apply to the host's own servers only.
_OF_THE_HOST = ("trust-ad",)


def parse_resolv_conf(text: str) -> dict[str, tuple[str, ...]]:
    """``nameservers``, ``search`` and ``options`` of a resolv.conf(5); other lines are ignored."""
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
    """Whether the user or a network sets name servers, search domains or options."""
    said = document.dns_exact or (document.dns is not None and any(document.dns.values()))
    results = [one.result for one in attachments if one.result is not None]
    return said or any(getattr(result, part) for result in results for part in PARTS)


def pod_dns(
    document: PodDocument,
    attachments: Iterable[Attachment],
    note: Callable[[str], None],
    host_file: str = HOST_FILE,
    resolved_file: str = RESOLVED_FILE,
) -> Dns:
    """The contents of the pod's resolv.conf.

    :param attachments: with their results.
    :param note: called with warnings for the user: a requested server is not used, or no server is left.
    :returns: ``nameservers``, ``search`` and ``options``; each may be empty.
    """
    if document.dns_exact and document.dns is not None:
        return document.dns
    joined = [one for one in attachments if one.result is not None and not one.base]
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
        return given  # the host's own file, unchanged
    if len(given["nameservers"]) > SERVERS:
        left = ", ".join(given["nameservers"][SERVERS:])
        note(f"resolvers use at most {SERVERS} name servers: {left} is ignored")
    # "." alone turns the search list off.
    search = () if given["search"] == (".",) else given["search"][:DOMAINS]
    return {**given, "nameservers": given["nameservers"][:SERVERS], "search": search}


def _of_use(
    host: dict[str, tuple[str, ...]],
    joined: list[Attachment],
    resolved_file: str,
    note: Callable[[str], None] | None,
) -> dict[str, tuple[str, ...]]:
    """The parts of the host's resolv.conf that work in a network namespace with these networks.

    :param note: called if none of the host's servers can be reached; None: its servers are not needed.
    """
    families = _families(joined)
    if not families:
        return dict.fromkeys(PARTS, ())  # the pod has no routable address
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
    """The IP versions of the addresses by which the pod reaches more than its own link."""
    addresses = [a.address.partition("/")[0] for one in joined if one.result for a in one.result.addresses]
    return {_family(address) for address in addresses if not address.startswith(_OF_A_LINK_V4)} - {0}


def _family(address: str) -> int:
    """4 or 6; 0 for text that is not an address, and for addresses that mean another machine in another namespace:
    loopback, link-local IPv6, or with a zone."""
    return 0 if _is_loopback(address) or address.lower().startswith(_OF_A_LINK) else address_family(address)


def _out_of_reach(server: str, families: set[int]) -> str | None:
    """Why a pod with addresses of these families cannot reach that name server; None: it may reach it."""
    if _is_loopback(server):
        return "that is the pod's own loopback, not the host's: only an app of the pod can answer there"
    if server.lower().startswith(_OF_A_LINK):
        return "an address of a single link is not reached without the name of its interface"
    if families and address_family(server) not in families:
        return f"the pod has no IPv{address_family(server)} address to reach it from"
    return None


def _is_loopback(address: str) -> bool:
    """Includes ``0.0.0.0``, which resolvers take as this host."""
    return address.startswith(("127.", "0.", "::ffff:127.")) or address in ("::1", "::")


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
