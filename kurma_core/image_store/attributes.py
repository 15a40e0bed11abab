"""Extended attributes: which an image may bring, which mean nothing here, which are a trick (A3, A5)."""

from __future__ import annotations

import os
from collections.abc import Mapping

_OVERLAY = (b"trusted.overlay.", b"user.overlay.")
#: Kept on extraction, and put into archives that Kurma makes.
_KEPT = (b"user.", b"trusted.", b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default")


def hostile(name: bytes) -> bool:
    """Whether it would act on an overlay mount: a whiteout, an opaque directory, a redirect out of the layer."""
    return name.startswith(_OVERLAY)


def kept(name: bytes) -> bool:
    """Whether it belongs to the image. Labels of a host's security modules do not (``security.selinux``,
    ``security.ima``), and neither do other systems' attributes."""
    return name.startswith(_KEPT) and not hostile(name)


def put(target: int | bytes, attributes: Mapping[bytes, bytes], *, follow: bool = True) -> None:
    """Set those of ``attributes`` that are kept.

    :param target: a descriptor, or a path whose last component alone can be a link.
    :raises OSError: as the kernel says; needs root for all but ``user.``.
    """
    for name, value in attributes.items():
        if kept(name):
            os.setxattr(target, name, value, follow_symlinks=follow)


def get(target: int | bytes, *, follow: bool = True) -> dict[bytes, bytes]:
    """All that are kept, sorted by name.

    :raises OSError: as the kernel says.
    """
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as error:
        import errno

        if error.errno == errno.ENOTSUP:
            return {}
        raise
    if not names:
        return {}
    found = sorted(os.fsencode(name) for name in names)
    return {name: os.getxattr(target, name, follow_symlinks=follow) for name in found if kept(name)}
