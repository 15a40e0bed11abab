"""Answers requests to the metadata service: the late interface below a pod's token, the early one without, and the
identity endpoint, which signs and verifies content by HMAC with a pod's key.

Implements App Container Metadata Service; RFC 2104.
"""

from __future__ import annotations

import binascii
import hmac
import json
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from kurma_core.formats.small_json import decode
from kurma_core.metadata.http import ASCII, HttpError, Request, Response
from kurma_core.value import frozen

Json = Any
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_ROOT = ["acMetadata", "v1"]
#: Most answers that are cached until the pod changes.
_KEPT = 256
#: Hash functions of the late and of the early specification.
LATE, EARLY = "sha512", "sha256"
_HEX = frozenset("0123456789abcdef")
_FORM = b"application/x-www-form-urlencoded"
_FIELDS = 16


@frozen
class ImageFacts:
    """One image.

    :param manifest: the manifest's bytes in the archive; for an early image, its converted form.
    :param original: the manifest for the early interface: an early image's own app manifest.
    :param early_id: the image's ID in the form of early documents; None: it has none.
    """

    id: str
    manifest: bytes
    original: bytes
    early_id: str | None = None


class Facts(Protocol):
    """The current facts of one pod. The service's thread calls it; each method may raise :class:`KurmaError`."""

    uuid: str

    def stamp(self) -> object:
        """Returns a value that changes with the pod's manifest. It must be cheap."""
        ...

    def manifest(self) -> Mapping[str, Json]:
        """Returns the pod's manifest, reified."""
        ...

    def image(self, image_id: str) -> ImageFacts: ...

    def key(self, uuid: str) -> bytes | None:
        """Returns the key of any pod of this state directory; None: there is no such pod."""
        ...


class Api:
    """Answers the requests of one pod's apps.

    :param early: the early interface is served, too; it has no token, and the socket alone identifies the pod.
    """

    def __init__(self, token: str, facts: Facts, early: bool) -> None:
        self._token = token.encode()
        self._facts = facts
        self._early = early
        self._stamp: object = None
        self._manifest: Mapping[str, Json] = {}
        self._kept: dict[tuple[bool, str], Response] = {}
        self._merged: dict[str, list[Json]] = {}

    def __call__(self, request: Request) -> Response:
        """Answers one request. :raises HttpError: for every status but 200."""
        first, *rest = request.path[1:].split(b"/")
        flavoured = request.headers.get(b"metadata-flavor") == b"AppContainer"
        if hmac.compare_digest(first, self._token):
            way = [_decoded(part) for part in rest]
            # An early image may take the address with the token from its environment.
            early = flavoured and (way[2:3] == ["container"] or way[-1:] == [""] or "annotations" in way[4:-1])
            if way[2:3] == ["container"] and not flavoured:
                raise _no_flavour()
        elif self._early and first == b"acMetadata":
            if not flavoured:
                raise _no_flavour()
            way, early = [_decoded(part) for part in (first, *rest)], True
        else:
            raise HttpError(401, "this is not the pod's token", ("WWW-Authenticate", 'Token realm="metadata"'))
        if way[:2] != _ROOT:
            raise _not_found()
        return self._routed(request, way[2:], early)

    def _routed(self, request: Request, way: list[str], early: bool) -> Response:
        if way[:2] == ["container" if early else "pod", "hmac"]:
            action = {"sign": sign, "verify": verify}.get("/".join(way[2:]))
            if action is None:
                raise _not_found()
            _allow(request, b"POST")
            return action(self._facts, request, early=early)
        if self._facts.stamp() != self._stamp:
            self._stamp = self._facts.stamp()
            self._kept.clear()
            self._merged.clear()
            manifest = self._facts.manifest()
            # The key is present also if there are no annotations, as in the answer for the annotations alone.
            self._manifest = {**manifest, "annotations": manifest.get("annotations") or []}
        key = (early, "\0".join(way))
        response = self._kept.get(key)
        if response is None:
            response = self._document(way, early)
            if len(self._kept) < _KEPT:
                self._kept[key] = response
        _allow(request, b"GET", b"HEAD")
        return response

    # -- documents --

    def _document(self, way: list[str], early: bool) -> Response:
        if way[:1] == ["container" if early else "pod"]:
            return self._of_pod(way[1:], early)
        if way[:1] == ["apps"]:
            for app in self._manifest.get("apps", ()):
                if way[1:2] == [app["name"]]:
                    return self._of_app(app, way[2:], early)
        raise _not_found()

    def _of_pod(self, rest: list[str], early: bool) -> Response:
        if rest == ["manifest"]:
            return Response(200, json.dumps(self._manifest).encode(), _JSON)
        if rest == ["uid" if early else "uuid"]:
            return Response(200, self._facts.uuid.encode(), ASCII)
        if rest[:1] == ["annotations"]:
            return _annotations(self._manifest.get("annotations") or [], rest[1:], early)
        raise _not_found()

    def _of_app(self, app: Mapping[str, Json], rest: list[str], early: bool) -> Response:
        if rest[:1] == ["annotations"]:
            return _annotations(self._annotations_of(app), rest[1:], early)
        if rest not in (["image", "manifest"], ["image", "id"]):
            raise _not_found()
        image = self._facts.image(app["image"]["id"])
        if rest == ["image", "manifest"]:
            return Response(200, image.original if early else image.manifest, _JSON)
        return Response(200, ((early and image.early_id) or image.id).encode(), ASCII)

    def _annotations_of(self, app: Mapping[str, Json]) -> list[Json]:
        """Returns the merged annotations of an app. They are cached like answers: the image's manifest may be
        large, and requests for names that do not exist are not cached."""
        merged = self._merged.get(app["name"])
        if merged is None:
            image = decode(self._facts.image(app["image"]["id"]).manifest)
            merged = self._merged[app["name"]] = merge(image.get("annotations"), app.get("annotations"))
        return merged


def merge(image: list[Json] | None, pod: list[Json] | None) -> list[Json]:
    """Merges annotations: the image's, in order, with the pod's values where it has the same name; then the pod's
    others."""
    merged = {each["name"]: each["value"] for each in (*(image or ()), *(pod or ()))}
    return [{"name": name, "value": value} for name, value in merged.items()]


def _annotations(found: list[Json], name: list[str], early: bool) -> Response:
    """Answers a request for annotations: for late clients all of them as JSON, for early ones their names or one
    value."""
    if not early:
        if name:
            raise _not_found()
        return Response(200, json.dumps(found).encode(), _JSON)
    if name == [""]:
        return Response(200, "".join(f"{each['name']}\n" for each in found).encode(), _TEXT)
    wanted = "/".join(name)
    for each in found:
        if name and each["name"] == wanted:
            return Response(200, each["value"].encode(), _TEXT)
    raise _not_found()


def _allow(request: Request, *methods: bytes) -> None:
    if request.method not in methods:
        allowed = b", ".join(methods).decode()
        raise HttpError(405, f"only {allowed} can be done here", ("Allow", allowed))


def _decoded(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "the path is not UTF-8") from None


def _not_found() -> HttpError:
    return HttpError(404, "there is nothing of that name")


def _no_flavour() -> HttpError:
    return HttpError(403, "the header Metadata-Flavor: AppContainer is needed here")


# -- the identity endpoint --


def sign(facts: Facts, request: Request, *, early: bool) -> Response:
    """Answers with the signature of the posted content in base64, without a newline.

    :param early: the body is the content; otherwise the content is a field of a form.
    :raises HttpError: the request is not such a form.
    """
    key = facts.key(facts.uuid)
    if key is None:
        raise HttpError(500, "the pod's key is lost")
    content = request.body if early else form_fields(request, "content")[0]
    signature = hmac.digest(key, content, EARLY if early else LATE)
    return Response(200, binascii.b2a_base64(signature, newline=False), ASCII)


def verify(facts: Facts, request: Request, *, early: bool) -> Response:
    """Answers 200 if the named pod of this state directory made the posted signature of the posted content.

    :raises HttpError: it did not, or the request is not such a form.
    """
    uuid, content, signature = form_fields(request, "uid" if early else "uuid", "content", "signature")
    if not _verified(facts, uuid, content, signature, EARLY if early else LATE):
        raise HttpError(403, "the signature is not that pod's")
    return Response(200, b"", ASCII)


def _verified(facts: Facts, uuid: bytes, content: bytes, signature: bytes, algorithm: str) -> bool:
    """Whether the signature is right. :param signature: base64; unencoded plus signs of a form arrive as
    spaces."""
    try:
        # Spaces at the ends are plus signs, too, so only other white space is stripped.
        given = binascii.a2b_base64(signature.strip(b"\t\r\n").replace(b" ", b"+"), strict_mode=True)
        pod = uuid.decode("ascii").strip().lower()
    except ValueError:
        return False
    parts = pod.split("-")
    if [len(part) for part in parts] != [8, 4, 4, 4, 12] or not _HEX.issuperset("".join(parts)):
        return False
    key = facts.key(pod)
    if key is None:
        return False
    return hmac.compare_digest(given, hmac.digest(key, content, algorithm))


def form_fields(request: Request, *wanted: str) -> list[bytes]:
    """The values of these fields of an ``application/x-www-form-urlencoded`` body, in this order.

    :raises HttpError: the body is not a form; a field is missing or occurs twice.
    """
    kind = request.headers.get(b"content-type", _FORM).partition(b";")[0].strip().lower()
    if kind != _FORM:
        raise HttpError(415, f"a form is wanted, as {_FORM.decode()}")
    pairs = request.body.split(b"&", _FIELDS)
    if len(pairs) > _FIELDS:
        raise HttpError(400, f"the form has more than {_FIELDS} fields")
    found: dict[bytes, bytes] = {}
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        name = _form_text(name)
        if name in found:
            raise HttpError(400, "a field of the form is there twice")
        found[name] = _form_text(value)
    for name_wanted in wanted:
        if name_wanted.encode() not in found:
            raise HttpError(400, f"the form has no field {name_wanted}")
    return [found[each.encode()] for each in wanted]


def _form_text(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))
