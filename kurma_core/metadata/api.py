"""Answers requests to the metadata service: the late interface below a pod's token, and the early one without."""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from kurma_core.formats.small_json import decode
from kurma_core.metadata import hmac_endpoint
from kurma_core.metadata.http import ASCII, HttpError, Request, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.metadata.facts import Facts

Json = Any
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_ROOT = ["acMetadata", "v1"]
#: Most answers that are cached until the pod changes.
_KEPT = 256


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
            action = {"sign": hmac_endpoint.sign, "verify": hmac_endpoint.verify}.get("/".join(way[2:]))
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
