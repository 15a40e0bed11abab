"""Operations on images."""

from __future__ import annotations

import base64
import os
import tempfile
from typing import TYPE_CHECKING, Any

from kurma_core.appc import types
from kurma_core.appc._reader import Reader
from kurma_core.daemon import operation
from kurma_core.daemon.http.exchange import TooLargeError
from kurma_core.daemon.operations import Call, Query
from kurma_core.daemon.operations import operation as op
from kurma_core.daemon.queries import DRY_RUN
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.daemon.http.exchange import Exchange

Json = Any
_ARCHIVE = "application/x-tar"
#: Bytes of a signature in a header.
_LARGEST_SIGNATURE = 8192


@op("GET", "/v1/images", "List images; what is wrong with damaged ones is told.", rights="read", result="Images")
def images(call: Call) -> Json:
    listing = call.client.images_list()
    for error in listing.damaged:
        operation.current().problem(error)
    return [image.to_json() for image in listing.images]


@op("POST", "/v1/images", "Fetch an image.", body="ImageWish", result="Image", given_up=True)
def image_fetch(call: Call) -> Json:
    reader = Reader(call.body, "$", None)
    record = call.client.image_fetch(
        reader.string("locator", types.nonempty),
        pull=reader.optional("pull", types.nonempty) or "new",
        insecure=frozenset(reader.strings("insecure", types.nonempty)),
        progress=operation.current().progress(),
    )
    return record.to_json()


@op(
    "POST",
    "/v1/images/upload",
    "Bring the archive that is the body into the store. Header Kurma-Signature: its signature, in base64.",
    query=(
        Query("name", "text", "what to call it: a file's name", default="archive.aci"),
        Query("insecure", "text", "a check to relax", many=True),
    ),
    takes=_ARCHIVE,
    result="Image",
    given_up=True,
)
def image_upload(call: Call) -> Json:
    from kurma_core.image_store.staging import CANNOT
    from kurma_core.image_store.store import guard

    signature = _signature(call.exchange)
    root = os.path.join(call.client.config.state_dir, "images")
    with guard(CANNOT, root):
        os.makedirs(root, mode=0o700, exist_ok=True)
        # All of it first: a client that is slow, or asked for a passphrase on the way, holds up nobody.
        with tempfile.TemporaryFile(dir=root) as stream:
            _spool(call, stream)
            record = call.client.images.upload(
                stream, call.query["name"], signature=signature, insecure=frozenset(call.query["insecure"])
            )
    return record.to_json()


def _spool(call: Call, stream: BinaryIO) -> None:
    """:raises TooLargeError: it is larger than an image may be."""
    largest = call.client.config.limits.total_size
    count = 0
    for piece in call.exchange.pieces():
        count += len(piece)
        if count > largest:
            raise TooLargeError(f"the archive is longer than an image may be ({largest} bytes)")
        stream.write(piece)
    stream.flush()


def _signature(exchange: Exchange) -> bytes | None:
    text = exchange.headers.get("kurma-signature")
    if text is None:
        return None
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        raise UsageError("Kurma-Signature: a signature is said in base64") from None
    if len(found) > _LARGEST_SIGNATURE:
        raise UsageError(f"Kurma-Signature: longer than a signature may be here ({_LARGEST_SIGNATURE} bytes)")
    return found


@op("GET", "/v1/images/{image}", "Show an image.", rights="read", result="ImagePage")
def image(call: Call) -> Json:
    return call.client.image(call.path["image"]).to_json()


@op(
    "GET",
    "/v1/images/{image}/manifest",
    "An image's manifest, byte for byte.",
    kind="bytes",
    query=(Query("original", "flag", "of an early image its own documents", default=False),),
    gives=("application/json",),
)
def image_manifest(call: Call) -> None:
    document = call.client.image_manifest(call.path["image"], original=call.query["original"])
    call.exchange.respond(200, document, "application/json")


@op(
    "GET",
    "/v1/images/{image}/archive",
    "An image as an archive, uncompressed, with exactly its ID.",
    kind="bytes",
    gives=(_ARCHIVE,),
    given_up=True,
)
def image_archive(call: Call) -> None:
    out: Any = _Pieces(call.exchange)
    call.client.image_archive(call.path["image"], out)
    out.end()


class _Pieces:
    """A file that is the answer; it begins with the first byte, so that what is wrong before that can be told."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def write(self, data: bytes) -> int:
        if not self._exchange.answered:
            self._exchange.begin(_ARCHIVE)
        self._exchange.piece(bytes(data))
        return len(data)

    def end(self) -> None:
        self._exchange.end()


@op(
    "POST", "/v1/images/{image}/verify", "Read all of an image and check it.", result="ImageChecked", given_up=True
)
def image_verify(call: Call) -> Json:
    found = call.client.image_verify(call.path["image"])
    return found.to_json()


@op(
    "POST",
    "/v1/images/{image}/render",
    "Make an image's directories, top first.",
    query=(
        Query("renderer", "text", "the configured one otherwise"),
        Query("verify", "flag", "check the images' content again first", default=False),
    ),
    result="ImageRendered",
    given_up=True,
)
def image_render(call: Call) -> Json:
    return call.client.image_render(
        call.path["image"], call.query["renderer"], verify=call.query["verify"]
    ).to_json()


@op(
    "POST",
    "/v1/images/{image}/extract",
    "Extract an image's root filesystem into a directory of the host; its ID.",
    body="Directory",
    result="ImageId",
    given_up=True,
)
def image_extract(call: Call) -> Json:
    directory = Reader(call.body, "$", None).string("directory", types.absolute_path)
    # An ID: what else the reference may mean here is a file of the daemon's, and not of who asks.
    ident = call.client.images.get(call.path["image"]).id
    return {"id": call.client.image_extract(ident, directory)}


@op("DELETE", "/v1/images/{image}", "Remove an image that no pod uses.", query=(DRY_RUN,), result="ImageGc")
def image_remove(call: Call) -> Json:
    return call.client.image_rm(call.path["image"], dry_run=call.query["dryRun"]).to_json()


@op(
    "POST",
    "/v1/images/gc",
    "Remove images that were not used for a while.",
    query=(Query("grace", "seconds", "keep what was used less than that ago", default=86400.0), DRY_RUN),
    result="ImageGc",
)
def image_gc(call: Call) -> Json:
    return call.client.image_gc(grace=call.query["grace"], dry_run=call.query["dryRun"]).to_json()


@op("POST", "/v1/answers/{answer}", "Answer what an operation asks its client (a passphrase).", body="Answer")
def answer(call: Call) -> None:
    operation.answer(call.path["answer"], Reader(call.body, "$", None).optional("passphrase", types.text))
