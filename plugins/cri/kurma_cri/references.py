"""Names of images as people write them, and their whole form: ``nginx`` is ``docker.io/library/nginx:latest``."""

from __future__ import annotations

import functools
import re

from kurma_core.value import frozen
from kurma_cri.rpc import invalid

_HUB = "docker.io"
#: Names of Docker Hub in references and addresses.
_HUBS = (_HUB, "index.docker.io", "registry-1.docker.io")
_HOST = re.compile(r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9._-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")


@frozen
class Reference:
    """The whole name of an image.

    :param name: registry and repository. :param tag: empty if there is a digest.
    :param digest: of the registry's manifest; empty: none is given.
    """

    name: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def is_id(text: str) -> bool:
    """Whether the text is a whole image ID, with or without ``sha256:``."""
    return _ID.fullmatch(text) is not None


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Reference:
    """Completes ``[HOST[:PORT]/]NAME[:TAG][@DIGEST]``; with a digest, the tag does not matter.

    :raises RpcError: the text is not the name of an image.
    """
    body, at, digest = text.partition("@")
    host, slash, rest = body.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, rest = _HUB, body
    if host.lower() in _HUBS:
        host = _HUB
    repository, colon, tag = rest.partition(":")
    if host == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    right = (
        not is_id(body)
        and _HOST.fullmatch(host)
        and all(map(_COMPONENT.fullmatch, repository.split("/")))
        and (not colon or _TAG.fullmatch(tag))
        and (not at or _DIGEST.fullmatch(digest))
    )
    if not right:
        raise invalid(f"{text[:200]!r} is not the name of an image: write [HOST/]NAME[:TAG][@DIGEST]")
    name = f"{host.lower()}/{repository}"
    return Reference(name, "", digest) if digest else Reference(name, tag or "latest")
