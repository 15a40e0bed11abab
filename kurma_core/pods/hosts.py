"""``/etc/hosts`` of a pod: the lines that are its own, and those of other pods, which come and go (W10, H10)."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from kurma_core.linux.regular_file import NotRegularError, open_regular
from kurma_core.models.pod import ETC_FILES
from kurma_core.pods.dns import says_dns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kurma_core.models.network import Attachment
    from kurma_core.pods.document import PodDocument

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
