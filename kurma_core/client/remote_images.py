"""Images and keys, by way of a daemon. Files that a caller names are the caller's: read and written here."""

from __future__ import annotations

import os

from kurma_core.client.asking import Asking
from kurma_core.client.targets import target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any, BinaryIO, TypeVar, Unpack

    from kurma_core.api.images import ImageChecked, ImageGc, ImageListing, ImagePage, ImageRendered
    from kurma_core.api.trust import Key, TrustChange, TrustedKey
    from kurma_core.client.options import BringOptions, FetchOptions
    from kurma_core.client.wire import Body
    from kurma_core.models.image import ImageRecord
    from kurma_core.progress import Progress

    Json = Any
    T = TypeVar("T")

_PIECE = 1 << 18


class RemoteImages(Asking):
    def locator(self, text: str) -> str:
        """As it is meant here: a path is one of this process's working directory."""
        from kurma_core.client.locators import absolute

        return absolute(text, lambda: self.registry.names("kurma.fetchers"))

    def image_fetch(self, locator: str, **options: Unpack[FetchOptions]) -> ImageRecord:
        from kurma_core.client import answers

        progress, insecure = options.pop("progress", None), sorted(options.pop("insecure", ()))
        body = {"locator": self.locator(locator), "insecure": insecure, **options}
        return self.understood(answers.image, self._ask("POST", ("images",), None, body, progress, secrets=True))

    def image_upload(
        self, path: str, *, signature: str | None = None, **options: Unpack[BringOptions]
    ) -> ImageRecord:
        from kurma_core.client import answers
        from kurma_core.client.images import signature_in
        from kurma_core.named_files import opened

        name = os.path.basename(path)
        headers = {"Accept": "application/x-ndjson", "Content-Type": "application/x-tar", **self.attempts()}
        if signature is not None:
            from binascii import b2a_base64

            headers["Kurma-Signature"] = b2a_base64(signature_in(signature), newline=False).decode()
        with opened(path) as stream:
            body = _body(stream, name, options.get("progress"))
            where = target(("images", "upload"), {"name": name, "insecure": sorted(options.get("insecure", ()))})
            return self.understood(answers.image, self._asked("POST", where, body, headers))

    def images_list(self) -> ImageListing:
        from kurma_core.api.images import ImageListing
        from kurma_core.client import answers

        damaged = []

        def heard(message: Json) -> None:
            if message["is"] == "problem":
                damaged.append(self.failure(message))

        found = self._each(answers.listed_image, self._ask("GET", ("images",), heard=heard))
        return ImageListing(found, tuple(damaged))

    def image(self, reference: str) -> ImagePage:
        from kurma_core.client import answers

        return self.understood(answers.image_facts, self._ask("GET", _of(reference)))

    def image_manifest(self, reference: str, *, original: bool = False) -> bytes:
        from io import BytesIO

        out = BytesIO()
        self._write((*_of(reference), "manifest"), {"original": original}, out)
        return out.getvalue()

    def image_archive(self, reference: str, out: BinaryIO) -> None:
        self._write((*_of(reference), "archive"), None, out)

    def image_extract(self, reference: str, target: str) -> str:
        if self.archive_path(reference) is not None:
            return super().image_extract(reference, target)
        body = {"directory": os.path.abspath(target)}
        found: str = self._ask("POST", (*_of(reference), "extract"), body=body)["id"]
        return found

    def image_render(self, reference: str, renderer: str | None = None, *, verify: bool = False) -> ImageRendered:
        from kurma_core.client import answers

        query = {"renderer": renderer, "verify": verify}
        return self.understood(answers.rendered, self._ask("POST", (*_of(reference), "render"), query))

    def image_verify(self, reference: str) -> ImageChecked:
        from kurma_core.client import answers

        return self.understood(answers.verified, self._ask("POST", (*_of(reference), "verify")))

    def image_rm(self, reference: str, *, dry_run: bool = False) -> ImageGc:
        from kurma_core.client import answers

        return self.understood(answers.gc_report, self._ask("DELETE", _of(reference), {"dryRun": dry_run}))

    def image_gc(self, *, grace: float, dry_run: bool = False) -> ImageGc:
        from kurma_core.client import answers

        query = {"grace": grace, "dryRun": dry_run}
        return self.understood(answers.gc_report, self._ask("POST", ("images", "gc"), query))

    # -- keys --

    def trust_list(self) -> tuple[TrustedKey, ...]:
        from kurma_core.client import answers

        return self._each(answers.trusted_key, self._ask("GET", ("trust",)))

    def trust_read(self, source: str, insecure: Collection[str] = frozenset()) -> tuple[Key, ...]:
        if not source.lower().startswith(("http://", "https://")):
            return super().trust_read(source, insecure)
        return self._keys(address=source, insecure=sorted(insecure))

    def trust_discover(self, name: str, insecure: Collection[str] = frozenset()) -> tuple[Key, ...]:
        return self._keys(name=name, insecure=sorted(insecure))

    def _keys(self, **body: Json) -> tuple[Key, ...]:
        from kurma_core.client import answers

        return self._each(answers.key, self._ask("POST", ("trust", "find"), body=body))

    def trust_add(self, key: Key, prefix: str | None) -> TrustChange:
        from kurma_core.client import answers

        material = key.material.decode("utf-8", "surrogateescape")
        body = {"key": material, "source": key.source, "prefix": prefix}
        return self.understood(answers.change, self._ask("POST", ("trust",), body=body))

    def trust_rm(self, reference: str, prefix: str | None, *, dry_run: bool = False) -> TrustChange:
        from kurma_core.client import answers

        query = {"prefix": prefix, "dryRun": dry_run}
        return self.understood(answers.change, self._ask("DELETE", ("trust", reference), query))

    def _each(self, read: Callable[[Json], T], said: Json) -> tuple[T, ...]:
        return self.understood(lambda found: tuple([read(one) for one in found]), said)


def _of(reference: str) -> tuple[str, str]:
    """:raises UsageError: the reference is empty."""
    if not reference:
        from kurma_core.errors import UsageError

        raise UsageError("an image's name is empty")
    return "images", reference


def _body(stream: BinaryIO, name: str, progress: Progress | None) -> Body:
    """What of a file is sent moves the progress bar."""
    from kurma_core.client.wire import Body

    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)

    def pieces() -> Iterator[bytes]:
        if progress is not None:
            progress.start(name, size)
        left = size
        while left and (piece := stream.read(min(left, _PIECE))):
            yield piece
            left -= len(piece)
            if progress is not None:
                progress.advance(len(piece))
        if progress is not None:
            progress.finish()

    return Body(size, pieces())


__all__ = ["RemoteImages"]
