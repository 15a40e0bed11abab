"""What is fuzzed: each target takes any bytes, and raises nothing but what its parser may say of them.

Each has seeds, from which whoever runs it begins: honest inputs, which every mutation is one of.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import zstandard
from kurma_cri.streaming import spdy
from kurma_cri.streaming.spdy_connection import RefusedError, SpdyConnection, SpdyStream
from kurma_cri.streaming.streams import Input, Resizes
from kurma_cri.streaming.websocket import Channels, Handshake, WebSocket
from kurma_fetch_docker import conversion, oci_documents, reference
from kurma_fetch_http import discovery_templates, meta_tags

from kurma_core.appc import early_image, early_pod
from kurma_core.appc.image import ImageManifest
from kurma_core.appc.pod import PodManifest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import FetchError, ImageError, KurmaError, ManifestError
from kurma_core.hookspecs.fetcher import FetchRequest
from kurma_core.image_store import ImageStore, Limits
from kurma_core.metadata.api import Api
from kurma_core.metadata.http import HttpError, RequestReader
from tests.kit.archives import MANIFEST, directory, file, hardlink, image, member, symlink, tar, validate
from tests.metadata.metadata_fakes import TOKEN, UUID, FakeFacts

Target = Callable[[bytes], None]

_SMALL = Limits(total_size=1 << 22, entries=200, ratio=200, ratio_from=1 << 18, names_size=1 << 18)
_BLOCK = 512


# --- archives ----------------------------------------------------------------------------------------------------


class _Place:
    """A store, and something beside it that must stay as it is."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="kurma-fuzz-")
        os.mkdir(f"{self.path}/outside")
        with open(f"{self.path}/outside/target", "wb") as out:
            out.write(b"untouched")
        self.store = ImageStore(f"{self.path}/images", limits=_SMALL)
        self.store.prepare()

    def check(self) -> None:
        """Nothing was left in the store, or done outside of it."""
        for name in ("tmp", "archives", "layers", "images"):
            assert os.listdir(self.store.path(name)) == [], f"something is left in {name}"
        assert set(os.listdir(self.path)) == {"images", "outside"}, "something was made beside the store"
        assert os.listdir(f"{self.path}/outside") == ["target"], "something was made outside of the store"
        status = os.stat(f"{self.path}/outside/target")
        assert (status.st_size, status.st_nlink, status.st_mode & 0o7777) == (9, 1, 0o644), "a file was changed"


@cache
def _place() -> _Place:
    import atexit

    place = _Place()
    atexit.register(shutil.rmtree, place.path, ignore_errors=True)
    return place


def repaired(archive: bytes) -> bytes:
    """With every header's checksum put right: a change is not noticed by those alone."""
    blocks = bytearray(archive)
    for at in range(0, len(blocks) - _BLOCK + 1, _BLOCK):
        block = blocks[at : at + _BLOCK]
        if block[257:262] == b"ustar":
            block[148:156] = b"        "
            blocks[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return bytes(blocks)


def archive(data: bytes) -> None:
    """An image archive: checked, and extracted. The first byte says whether checksums are put right."""
    content = repaired(data[1:]) if data[:1] != b"=" else data[1:]
    place = _place()
    valid = _said(lambda: validate(io.BytesIO(content), _SMALL), ImageError, ManifestError)
    taken = _said(lambda: _stage(place.store, content), ImageError, ManifestError)
    place.check()
    assert valid is None or taken is not None, f"extracted what validation refuses: {valid}"


def _stage(store: ImageStore, content: bytes) -> None:
    with store.stage_archive(io.BytesIO(content)) as staged:
        assert staged.id.startswith("sha512-")


def layer(data: bytes) -> None:
    """A registry's layer, with whiteouts."""
    content = repaired(data[1:]) if data[:1] != b"=" else data[1:]
    place = _place()
    # Its digest is another: whatever it is, it does not come in.
    error = _said(lambda: place.store.add_layer(io.BytesIO(content), "sha256:" + "0" * 64), ImageError)
    place.check()
    assert error is not None, "a layer came in that is not the one asked for"


def _said(action: Callable[[], object], *kinds: type[KurmaError]) -> KurmaError | None:
    try:
        action()
    except kinds as error:
        text = str(error)
        assert "\n" not in text, "an error of several lines"
        assert len(text) < 20_000, "an error without end"
        return error
    return None


def _archive_seeds() -> Iterator[bytes]:
    sparse = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,3,4096,2",
        "GNU.sparse.size": "9000",
    }
    old = {
        "GNU.sparse.offset": "0",
        "GNU.sparse.numbytes": "5",
        "GNU.sparse.size": "7",
        "GNU.sparse.numblocks": "1",
    }
    listed = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "rootfs/t",
        "GNU.sparse.realsize": "9000",
    }
    attributes = {
        "SCHILY.xattr.user.x": "1",
        "mtime": "1.5",
        "SCHILY.acl.access": "user::rw-,user:7:r--,group::r--,mask::r--,other::r--",
        "LIBARCHIVE.xattr.user.y": "eQ",
    }
    import tarfile

    plain = image(
        directory("rootfs/d", pax_headers=attributes),
        file("rootfs/d/f", b"hello" * 20),
        symlink("rootfs/l", "d/f"),
        hardlink("rootfs/h", "rootfs/d/f"),
        member("rootfs/p", tarfile.FIFOTYPE),
        member("rootfs/c", tarfile.CHRTYPE, devmajor=1, devminor=3),
    )
    yield plain
    yield image(file("rootfs/s", b"abcde", pax_headers=sparse), file("rootfs/o", b"abcde", pax_headers=old))
    map_first = b"2\n0\n3\n4096\n2\n".ljust(_BLOCK, b"\0") + b"abcde"
    yield image(file("rootfs/GNUSparseFile.0/t", map_first, pax_headers=listed))
    yield image(file("rootfs/" + "n" * 120), symlink("rootfs/l", "t" * 120), format=tarfile.GNU_FORMAT)
    yield image(file("rootfs/big", b"", uid=1 << 22), file("rootfs/é", mtime=-1.5))
    small = image(file("rootfs/f"))
    yield from (gzip.compress(small), bz2.compress(small), lzma.compress(small))
    yield from (zstandard.compress(small), gzip.compress(small[:600]) + gzip.compress(small[600:]))
    yield tar([file("app", b"{}"), directory("rootfs")])


def _layer_seeds() -> Iterator[bytes]:
    yield tar([directory("d"), file("d/f"), file("d/.wh.gone"), file("e/.wh..wh..opq"), file("./d/f", b"again")])
    yield gzip.compress(tar([symlink("l", "/x"), hardlink("h", "l"), file("/abs"), directory("l")]))


# --- documents ---------------------------------------------------------------------------------------------------


def manifest(data: bytes) -> None:
    """Image and pod manifests, templates, and early documents; what is accepted is read again as the same."""
    for parse in (ImageManifest.parse, PodManifest.parse, PodTemplate.parse, _early_image, _early_pod):
        found: list[ImageManifest | PodManifest | PodTemplate] = []
        if _said(lambda parse=parse, found=found: found.append(parse(data)), ManifestError) is not None:  # type: ignore[misc]
            continue
        late = found[0]
        again = type(late).parse(json.dumps(late.to_json()))
        assert again.to_json() == late.to_json(), "written and read, it is another"


def _early_image(data: bytes) -> ImageManifest:
    return early_image.convert_any(data)


def _early_pod(data: bytes) -> PodTemplate:
    return early_pod.convert_pod(data)


_APP = {
    "exec": ["/bin/sh", "-c", "true"],
    "user": "0",
    "group": "0",
    "supplementaryGIDs": [1, 2],
    "workingDirectory": "/",
    "environment": [{"name": "A", "value": "b"}],
    "eventHandlers": [{"name": "pre-start", "exec": ["/x"]}],
    "mountPoints": [{"name": "work", "path": "/work", "readOnly": True}],
    "ports": [{"name": "www", "protocol": "tcp", "port": 80, "count": 2, "socketActivated": False}],
    "isolators": [
        {"name": "resource/memory", "value": {"limit": "1.5Gi"}},
        {"name": "resource/cpu", "value": {"limit": "250m"}},
        {"name": "os/linux/capabilities-retain-set", "value": {"set": ["CAP_NET_ADMIN"]}},
    ],
    "userLabels": {"a": "b"},
}
_EARLY_APP = {
    "acKind": "AppManifest",
    "acVersion": "0.1.0",
    "name": "example.com/thing-1.0.0",
    "os": "linux",
    "arch": "amd64",
    "exec": ["/bin/sh"],
    "user": "0",
    "group": "0",
    "environment": {"A": "b"},
    "isolators": {"memory/limit": "1G", "cpu/shares": "20", "networkIO/readBandwidth": "lo 1M"},
    "mountPoints": [{"name": "db", "path": "/db", "readOnly": False}],
    "ports": [{"name": "www", "protocol": "tcp", "port": 80}],
    "dependencies": [{"hash": "sha256-" + "ab" * 32, "name": "example.com/base", "root": "/opt"}],
    "annotations": {"created": "2014-10-27T19:32:27Z"},
}
_EARLY_POD = {
    "acKind": "ContainerRuntimeManifest",
    "acVersion": "0.1.0",
    "uuid": "6733C088-A507-4694-AABF-EDBE4FC5266F",
    "apps": [
        {"app": "example.com/thing-1.0.0", "imageID": "sha256-" + "ab" * 32, "isolators": {"memory/limit": "1G"}}
    ],
    "volumes": [
        {"kind": "host", "source": "/opt", "readOnly": True, "fulfills": ["db"]},
        {"kind": "empty", "fulfills": ["w"]},
    ],
    "isolators": {"memory/limit": "4G"},
    "annotations": {"ip-address": "10.1.2.3"},
}


def _manifest_seeds() -> Iterator[bytes]:
    full = {
        **MANIFEST,
        "app": _APP,
        "dependencies": [{"imageName": "example.com/base", "imageID": "sha512-" + "ab" * 64, "size": 10}],
        "pathWhitelist": ["/bin"],
        "annotations": [{"name": "created", "value": "2026-01-02T03:04:05Z"}],
    }
    pod = {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "apps": [
            {
                "name": "a",
                "image": {"id": "sha512-" + "ab" * 64, "name": "example.com/thing", "labels": []},
                "app": _APP,
                "mounts": [{"volume": "v", "path": "/work"}],
                "readOnlyRootFS": True,
            }
        ],
        "volumes": [
            {"name": "v", "kind": "empty", "mode": "0755", "uid": 0, "gid": 0},
            {"name": "h", "kind": "host", "source": "/srv", "readOnly": True, "recursive": False},
        ],
        "ports": [{"name": "www", "hostPort": 8080, "hostIP": "127.0.0.1"}],
        "isolators": [],
        "annotations": [],
    }
    template = {"apps": [{"name": "a", "image": "docker://nginx:1"}], "networks": ["none"]}
    for document in (full, pod, template, _EARLY_APP, _EARLY_POD):
        yield json.dumps(document).encode()
    yield json.dumps(
        {"acKind": "FilesetManifest", "acVersion": "0.1.0", "name": "example.com/f", "files": ["/a"]}
    ).encode()


# --- what fetchers read ------------------------------------------------------------------------------------------


def discovery(data: bytes) -> None:
    """A web page of anybody's, and the templates in it."""
    values = {"version": "1.0", "os": "linux", "arch": "amd64"}
    for tag in meta_tags.tags_of(data):
        for candidate in discovery_templates.candidates(tag, "example.com/app/more", values):
            assert "{" not in candidate.image or "}" not in candidate.image, "a variable is left unfilled"


def _discovery_seeds() -> Iterator[bytes]:
    yield b"""<!DOCTYPE html><html><head><meta charset="utf-8">
<meta name="ac-discovery" content="example.com/app https://example.com/{name}-{version}-{os}-{arch}.{ext}">
<meta name='ac-discovery' content="example.com https://x.example.com/{+name}{/version}{?os,arch}.{ext}">
<meta name=ac-discovery-pubkeys content="example.com https://example.com/keys.gpg"></head><body></body></html>"""


def registry(data: bytes) -> None:
    """A registry's documents: a manifest or index, then an image's config, a line each; a reference."""
    first, _, second = data.partition(b"\n")
    _said(lambda: _registry(first, second), FetchError, ImageError)
    _said(lambda: reference.parse_reference(first[:300].decode("utf-8", "replace")), KurmaError)


def _registry(first: bytes, second: bytes) -> None:
    request = FetchRequest("linux", "amd64")
    digest = "sha256:" + "ab" * 32
    oci_documents.choose(first, digest, "a manifest", request, lambda _: second)
    config = oci_documents.parse_json(second, "a config")
    conversion.diff_ids(config, "a config")
    made = conversion.image_manifest(config, conversion.ImageOrigin("example.com", "thing", "1"), request)
    conversion.conventions({pair.name: pair.value for pair in made.annotations})
    made = made.to_json()
    assert json.loads(json.dumps(made)) == made


def _registry_seeds() -> Iterator[bytes]:
    descriptor = {
        "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
        "digest": "sha256:" + "ab" * 32,
        "size": 9,
    }
    first = {
        "schemaVersion": 2,
        "config": {**descriptor, "mediaType": "application/vnd.oci.image.config.v1+json"},
        "layers": [descriptor],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                **descriptor,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "platform": {"os": "linux", "architecture": "amd64", "variant": "v1"},
            }
        ],
    }
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-01-02T03:04:05.678Z",
        "author": "me",
        "config": {
            "User": "1:2",
            "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
            "Env": ["A=b"],
            "Entrypoint": ["/x"],
            "Cmd": ["y"],
            "Volumes": {"/data": {}},
            "WorkingDir": "/w",
            "Labels": {"a": "b"},
            "StopSignal": "SIGINT",
            "Healthcheck": {"Test": ["CMD", "x"]},
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "ab" * 32]},
    }
    yield json.dumps(first).encode() + b"\n" + json.dumps(config).encode()
    yield json.dumps(index).encode() + b"\n" + json.dumps({**first, **config, "config": first["config"]}).encode()


# --- rendering ---------------------------------------------------------------------------------------------------


def render(data: bytes) -> None:
    """A graph of images, which the bytes choose: both renderers show an app what the specification says.

    Runs as root, in a mount namespace of its own.
    """
    _render_any()(data + _PADDING)


#: Choices that the bytes do not reach are the simplest ones; without them no graph would come of most inputs.
_PADDING = bytes(1 << 13)


@cache
def _render_any() -> Callable[[bytes], object]:
    from tests.rendering.test_renderers_agree import test_any_graph

    found: Callable[[bytes], object] = test_any_graph.hypothesis.fuzz_one_input  # type: ignore[attr-defined]
    return found


def _render_seeds() -> Iterator[bytes]:
    """Bytes that mean graphs of every size; there is no other way to say one."""
    import random

    for number in range(6):
        yield random.Random(number).randbytes(40 << number)


# --- the metadata service ----------------------------------------------------------------------------------------


def metadata(data: bytes) -> None:
    """What an app sends to the service, in pieces as long as the first byte says. There is an answer to all."""
    api = Api(TOKEN, FakeFacts(), early=True)
    reader, size = RequestReader(), (data[0] if data else 0) or 1000
    for at in range(1, len(data), size):
        reader.feed(data[at : at + size])
        try:
            while (request := reader.next()) is not None:
                try:
                    answer = api(request)
                    assert answer.status == 200
                except HttpError as error:
                    answer = error.response()
                assert answer.head(keep_alive=request.keep_alive).endswith(b"\r\n\r\n")
        except HttpError as error:
            error.response().head(keep_alive=False)
            return


def _metadata_seeds() -> Iterator[bytes]:
    v1 = f"/{TOKEN}/acMetadata/v1"
    old = "Metadata-Flavor: AppContainer\r\n"
    paths = [f"{v1}/pod/uuid", f"{v1}/apps/web/annotations", f"{v1}/apps/early/image/manifest?a=b", "http://a/b"]
    early = ["container/annotations/", "container/annotations/example.com/n%C3%A4me", "apps/web/image/id"]
    forms = [("sign", "content=a+b%2b"), ("verify", f"content=a&uuid={UUID}&signature=YWJj")]
    for size in ("\0", "\3"):
        for path in paths:
            yield f"{size}GET {path} HTTP/1.1\r\nHost: a\r\n\r\nHEAD {path} HTTP/1.0\r\n\r\n".encode()
        for path in early:
            yield f"{size}GET /acMetadata/v1/{path} HTTP/1.1\r\nHost: a\r\n{old}\r\n".encode()
        for name, form in forms:
            kind = "Content-Type: application/x-www-form-urlencoded\r\n"
            head = f"POST {v1}/pod/hmac/{name} HTTP/1.1\r\nHost: a\r\n{kind}Content-Length: {len(form)}\r\n\r\n"
            yield f"{size}{head}{form}".encode()


# --- the streaming server ----------------------------------------------------------------------------------------


class _Bytes:
    """A client that has sent these bytes, and has gone."""

    def __init__(self, data: bytes, size: int) -> None:
        self._pieces = [data[at : at + size] for at in range(0, len(data), size)]

    def receive(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def send(self, data: bytes) -> None:
        assert len(data) < 1 << 20

    def is_gone(self) -> bool:
        return True

    def hang_up(self) -> None:
        self._pieces.clear()


def streaming(data: bytes) -> None:
    """A client of the streaming server sends pieces as long as the second byte says. By the first byte: SPDY;
    ``h``: the header block of a SPDY stream; ``w``, ``b``: frames of a WebSocket.
    """
    kind, size, data = data[:1], (data[1] if data[1:] else 0) or 1000, data[2:]
    if kind in (b"w", b"b"):
        key = b"dGhlIHNhbXBsZSBub25jZQ=="
        headers = [(b"host", b"a"), (b"connection", b"upgrade"), (b"upgrade", b"websocket")]
        headers += [(b"sec-websocket-version", b"13"), (b"sec-websocket-key", key)]
        _, connection = Handshake(headers, "/exec/a").accept(None)
        sizes = Resizes(lambda rows, columns: None)
        channels = Channels(WebSocket(_Bytes(data, size), connection), encoded=kind == b"b", closes=True)
        channels.run({0: Input(), 4: sizes})
        return
    if kind == b"h":
        deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
        data = _syn_stream(1, deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH))
    streams = []

    def opened(stream: SpdyStream) -> None:
        if stream.headers.get("streamtype") == "refused":
            raise RefusedError
        streams.append(stream)
        stream.sink = Resizes(lambda rows, columns: None) if len(streams) % 2 else Input()

    SpdyConnection(_Bytes(data, size), opened).run()
    for stream in streams:
        stream.close()
        stream.reset(spdy.CANCEL)


def _syn_stream(number: int, block: bytes) -> bytes:
    body = struct.pack(">IIH", number, 0, 0) + block
    return struct.pack(">HHI", 0x8003, 1, len(body)) + body


def _header_block(**headers: str) -> bytes:
    words = [word.encode() for pair in headers.items() for word in pair]
    return struct.pack(">I", len(headers)) + b"".join(struct.pack(">I", len(word)) + word for word in words)


def _streaming_seeds() -> Iterator[bytes]:
    blocks = [_header_block(streamtype="stdin"), _header_block(streamtype="data", port="80", requestid="1")]
    yield from (b"h\0" + block for block in (*blocks, _header_block(streamtype="refused"), bytes(4)))
    deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
    opened = b""
    for number, block in enumerate(blocks):
        opened += _syn_stream(2 * number + 1, deflate.compress(block) + deflate.flush(zlib.Z_SYNC_FLUSH))
    frames = [
        spdy.data(1, b'{"Width":80,"Height":24}', fin=True),
        spdy.data(3, b"text"),
        spdy.reset(3, 5),
        spdy.ping(1),
        spdy.goaway(0, 0),
        spdy.window_update(0, 100),
        spdy.window_update(1, 100),
        struct.pack(">HHIIII", 0x8003, 4, 12, 1, 7, 1000),
    ]
    for size in (b"\0", b"\3"):
        yield b"s" + size + opened + b"".join(frames)
        yield b"s" + size + b"".join(frames)
        messages = [b"\0text", b'\4{"Width":80,"Height":24}', b"\xff\0", b"\xff", b""]
        for kind, first in ((b"w", 0x82), (b"b", 0x81)):
            texts = [b"0" + base64.b64encode(b"text"), b"0", b"", b"7abc"] if kind == b"b" else messages
            masked = [bytes((first, 0x80 | len(text))) + bytes(4) + text for text in texts]
            control = [b"\x89\x80\0\0\0\0", b"\x88\x82\0\0\0\0\x03\xe8"]
            yield kind + size + b"".join((*masked, *control))


def broken(data: bytes) -> None:
    """A parser with a mistake that only coverage leads to: whether the fuzzer finds anything at all."""
    if data[:1] == b"k" and data[1:2] == b"u" and data[2:3] == b"r":
        1 / 0  # noqa: B018 - the mistake


#: By name: what takes the bytes, and what gives the seeds.
TARGETS: Mapping[str, tuple[Target, Callable[[], Iterator[bytes]]]] = {
    "archive": (archive, lambda: (mark + seed for seed in _archive_seeds() for mark in (b"+", b"="))),
    "layer": (layer, lambda: (b"+" + seed for seed in _layer_seeds())),
    "manifest": (manifest, _manifest_seeds),
    "discovery": (discovery, _discovery_seeds),
    "registry": (registry, _registry_seeds),
    "render": (render, _render_seeds),
    "metadata": (metadata, _metadata_seeds),
    "streaming": (streaming, _streaming_seeds),
}
#: For the fuzzer's own test.
HIDDEN: Mapping[str, tuple[Target, Callable[[], Iterator[bytes]]]] = {
    "broken": (broken, lambda: iter((b"start",)))
}
