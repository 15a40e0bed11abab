"""Parses references of images: registry, repository, tag or digest."""

from __future__ import annotations

import re

from kurma_core.errors import UsageError
from kurma_core.value import frozen

#: Docker Hub's host, and its names in references.
HUB = "registry-1.docker.io"
HUB_NAMES = ("docker.io", "index.docker.io", HUB)
_HINT = "an image in a registry is docker://[HOST[:PORT]/]NAME[:TAG][@DIGEST]"
_COMPONENT = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
_TAG = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
#: Most characters of registry and repository, as the distribution specification and Docker have it.
_LONGEST = 255
_DIGITS = {"sha256": 64, "sha512": 128}


@frozen
class Reference:
    """One image of one repository.

    :param registry: ``host[:port]``; Docker Hub is always :data:`HUB`.
    :param repository: with ``library/`` for Docker Hub's official images.
    :param tag: None if only a digest is given.
    :param digest: ``sha256:…``, as pinned by the user.
    """

    registry: str
    repository: str
    tag: str | None
    digest: str | None = None

    @property
    def wanted(self) -> str:
        """The reference for the registry: the digest if there is one, else the tag."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_locator(locator: str) -> Reference:
    """Parses ``docker://…``. With three slashes the host is always Docker Hub.

    :raises UsageError: it is malformed.
    """
    rest = locator.partition(":")[2]
    if not rest.startswith("//"):
        raise UsageError(f"{locator}: not an image in a registry", hint=_meant(rest))
    return parse_reference(rest.removeprefix("//"), shown=locator)


def parse_reference(text: str, *, shown: str | None = None) -> Reference:
    """Parses ``[HOST[:PORT]/]NAME[:TAG][@DIGEST]``. As with Docker, the first part is a host if it holds a ``.``
    or a ``:``, or is ``localhost``. :raises UsageError: it is malformed."""
    shown = shown or text
    body, at, digest = text.partition("@")
    if at and "/" in digest:
        raise UsageError(
            f"docker://{digest}: credentials are not allowed in an address",
            hint=f"kurma login {digest.partition('/')[0]}",
        )
    if at:
        check_digest(digest, shown)
    host, name = _split_host(body)
    registry = host or HUB
    if not host:  # docker:///NAME
        name = name.removeprefix("/")
    if not is_host(registry):
        raise UsageError(f"{shown}: {registry!r} is not a host[:port]", hint=_HINT)
    if registry in HUB_NAMES:
        registry = HUB
    repository, colon, tag = name.partition(":")
    if colon and (not tag or len(tag) > 128 or tag[0] in ".-" or not _TAG.issuperset(tag)):
        raise UsageError(f"{shown}: {tag!r} is not a tag", hint=_HINT)
    if not all(_is_component(part) for part in repository.split("/")):
        lower = " (names are in lower case)" if repository.lower() != repository else ""
        raise UsageError(f"{shown}: {repository!r} is not a name of an image{lower}", hint=_HINT)
    if len(registry) + 1 + len(repository) > _LONGEST:
        raise UsageError(
            f"{shown[:80]}…: the name of an image has at most {_LONGEST} characters, with its registry"
        )
    if registry == HUB and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(registry, repository, tag or (None if digest else "latest"), digest or None)


def is_host(text: str) -> bool:
    """Whether the text is ``host[:port]`` in lower case."""
    host = _HOST.fullmatch(text)
    return host is not None and int(host[1] or 0) <= 65535


def check_digest(digest: str, shown: str) -> str:
    """Returns the digest. :raises UsageError: it is malformed, or its algorithm is unknown."""
    algorithm, _, digits = digest.partition(":")
    if len(digits) != _DIGITS.get(algorithm, -1) or digits.strip("0123456789abcdef"):
        raise UsageError(
            f"{shown}: {digest!r} is not a digest", hint="a digest is sha256: and 64 hexadecimal digits"
        )
    return digest


def short_name(name: str, registry: str) -> str | None:
    """The address of a name at a registry; None: it is not the name of an image there.

    :param name: ``[HOST[:PORT]/]NAME[:TAG][@DIGEST]``. :param registry: the host of names without one. A name with
        another host is left to discovery, except that names of discovery have no port, and no host ``localhost``.
        Empty: Docker Hub, and names with any host are addresses of it.
    """
    registry = registry.lower()
    host, rest = _split_host(name)
    discovered = "." in host and ":" not in host
    same = host == registry or {host, registry} <= {*HUB_NAMES}
    if registry and discovered and not same:
        return None
    if not host and "/" not in rest and "." in rest.partition(":")[0].partition("@")[0]:
        return None  # a domain alone
    where = host or registry or HUB_NAMES[0]
    if where in HUB_NAMES and "/" not in rest:
        rest = f"library/{rest}"
    try:
        parse_reference(f"{where}/{rest}")
    except UsageError:
        return None
    return f"docker://{where}/{rest}"


def _split_host(name: str) -> tuple[str, str]:
    """The host in lower case, and the rest; the host is empty if the name has none."""
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first.lower(), rest
    return "", name


def _meant(path: str) -> str:
    """Returns a hint for ``docker:redis:7``."""
    address = short_name(path.lstrip("/"), "")
    return _HINT if address is None else f"did you mean {address}?"


def registry_of(locator: str) -> str:
    """The registry of ``docker://HOST``. :raises UsageError: it is not the address of a registry."""
    host = locator.partition(":")[2].removeprefix("//").rstrip("/").lower()
    if not is_host(host):
        raise UsageError(f"{locator}: not the address of a registry", hint="write docker://HOST[:PORT]")
    return HUB if host in HUB_NAMES else host


def _is_component(part: str) -> bool:
    return bool(part) and _COMPONENT.issuperset(part) and part[0].isalnum() and part[-1].isalnum()
