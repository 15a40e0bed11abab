"""Reads the parent of a pod's cgroup from the pod's annotation: a path, or the name of a systemd slice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kurma_core.errors import ManifestError
from kurma_core.linux.cgroups import GUEST
from kurma_core.models.isolator import CGROUP_PARENT

if TYPE_CHECKING:
    from kurma_core.appc.pod import PodManifest

_WORDS = "an absolute path such as /my/group, or a systemd slice such as my-group.slice"
_SLICE = ".slice"
#: The limits of paths and file names (PATH_MAX, NAME_MAX), less what the pod's own cgroups take.
_LONGEST, _LONGEST_PART = 3000, 255
#: The cgroup of a pod with a parent.
_POD = re.compile(rf"{GUEST}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")


def parent_of(pod: PodManifest) -> str | None:
    """The parent of the pod's cgroup, relative to the root of each hierarchy; "": the root. None: the pod has no
    such annotation.

    :raises ManifestError: the annotation has another value, or names a cgroup of Kurma's own.
    """
    text = pod.annotation(CGROUP_PARENT)
    if text is None:
        return None
    try:
        return expanded(text)
    except ValueError as error:
        why = f" ({error})" if str(error) else ""
        raise ManifestError(f"annotation {CGROUP_PARENT}", _WORDS, f"{text[:200]!r}{why}") from None


def expanded(text: str) -> str:
    """The path of a parent, without the first slash. :raises ValueError: it is neither a path nor a slice."""
    if "/" not in text and text.endswith(_SLICE):
        text = "/" + _of_slice(text)
    if not text.startswith("/"):
        raise ValueError
    path = text[1:].removesuffix("/")
    if not path:
        return ""
    parts = path.split("/")
    if len(path) > _LONGEST or any(len(part.encode(errors="replace")) > _LONGEST_PART for part in parts):
        raise ValueError("it is too long")
    for part in parts:
        if part in ("", ".", "..") or part.startswith("cgroup.") or not part.isprintable():
            raise ValueError("a part of it cannot be the name of a cgroup")
    if parts[0] == "kurma" or any(map(_POD.fullmatch, parts)):
        raise ValueError("this cgroup is Kurma's own")
    return path


def _of_slice(name: str) -> str:
    """The path of a slice, as systemd.slice(5) defines it: ``a-b.slice`` is in ``a.slice``; ``-.slice`` is the
    root."""
    words = name.removesuffix(_SLICE)
    if words == "-":
        return ""
    parts = words.split("-")
    if not all(parts):
        raise ValueError("a part of it is empty")
    return "/".join("-".join(parts[: count + 1]) + _SLICE for count in range(len(parts)))
