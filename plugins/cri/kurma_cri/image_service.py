"""The ImageService: images of the node. A method does one call of the interface."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from kurma_core.errors import (
    FetchError,
    FetchNotFoundError,
    FetchRefusedError,
    FetchTimeoutError,
    FetchTLSError,
    FetchTruncatedError,
    ImageError,
    ImageNotFoundError,
    TrustError,
)
from kurma_core.models.image import FetchCredentials
from kurma_cri import references
from kurma_cri.images import Images, NodeImage, images_in_use
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services
from kurma_cri.rpc import RpcError, failed_precondition, invalid, text_of
from kurma_cri.sandbox_request import MANAGER

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_cri.options import Options

#: grpc has no types.
Context: TypeAlias = Any
_CODES = grpc.StatusCode
#: Items in one message of a stream.
_BATCH = 100
#: Beginnings of messages that kubelet knows, if the code is UNKNOWN.
_UNTRUSTED, _UNAVAILABLE = "SignatureValidationFailed: ", "RegistryUnavailable: "


class ImageService(services.ImageServiceServicer):
    """:param client: does Kurma's operations."""

    def __init__(self, options: Options, client: Api, log: logging.Logger) -> None:
        self._options = options
        self._client = client
        self._log = log
        self._images = Images(client)

    def ListImages(self, request: cri.ListImagesRequest, context: Context) -> cri.ListImagesResponse:
        return cri.ListImagesResponse(images=map(image_message, self._chosen(request.filter)))

    def StreamImages(
        self, request: cri.StreamImagesRequest, context: Context
    ) -> Iterator[cri.StreamImagesResponse]:
        found = self._chosen(request.filter)
        for first in range(0, len(found), _BATCH):
            yield cri.StreamImagesResponse(images=map(image_message, found[first : first + _BATCH]))

    def _chosen(self, wanted: cri.ImageFilter) -> list[NodeImage]:
        if not wanted.image.image:
            return self._images.all()
        found = self._images.find(wanted.image.image)
        return [] if found is None else [found]

    def ImageStatus(self, request: cri.ImageStatusRequest, context: Context) -> cri.ImageStatusResponse:
        found = self._images.find(self._named(request.image))
        if found is None:
            return cri.ImageStatusResponse()
        answer = cri.ImageStatusResponse(image=image_message(found))
        if request.verbose:
            kurma = [record.id for record in found.records]
            answer.info["info"] = json.dumps({"imageSpec": {"config": found.facts.config}, "kurma": kurma})
        return answer

    def PullImage(self, request: cri.PullImageRequest, context: Context) -> cri.PullImageResponse:
        name = references.parse(self._named(request.image))
        try:
            # The registry is asked each time: it decides on these credentials, and knows a newer image.
            record = self._client.image_fetch(
                f"docker://{name}", pull="always", credentials=credentials_of(request.auth), manager=MANAGER
            )
        except TrustError as error:
            raise RpcError(_CODES.UNKNOWN, _UNTRUSTED + text_of(error)) from None
        except FetchNotFoundError as error:
            raise RpcError(_CODES.NOT_FOUND, text_of(error)) from None
        except FetchError as error:
            beginning = _UNAVAILABLE if _is_unavailable(error) else ""
            raise RpcError(_CODES.UNKNOWN, beginning + text_of(error)) from None
        return cri.PullImageResponse(image_ref=self._images.facts(record).id)

    def RemoveImage(self, request: cri.RemoveImageRequest, context: Context) -> cri.RemoveImageResponse:
        found = self._images.find(self._named(request.image))
        if found is not None:
            others = images_in_use(self._client, outside=True)
            users = [others[record.id] for record in found.records if record.id in others]
            if users:
                raise failed_precondition(f"image {request.image.image} is used by pod {users[0]}")
            for record in found.records:
                with contextlib.suppress(ImageNotFoundError):
                    # While containers run it, it stays in the store, and is not listed.
                    self._client.image_release(record.id, MANAGER)
        self._sweep()
        return cri.RemoveImageResponse()

    def ImageFsInfo(self, request: cri.ImageFsInfoRequest, context: Context) -> cri.ImageFsInfoResponse:
        use = self._client.image_store_use()
        system = cri.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=cri.FilesystemIdentifier(mountpoint=use.path),
            used_bytes=cri.UInt64Value(value=use.size),
            inodes_used=cri.UInt64Value(value=use.files),
        )
        # Images and writable layers are on one file system, which kubelet sees by the equal mount points.
        return cri.ImageFsInfoResponse(image_filesystems=[system], container_filesystems=[system])

    def _named(self, spec: cri.ImageSpec) -> str:
        """:raises RpcError: it names no image, or an unknown runtime handler."""
        if not spec.image:
            raise invalid("image: no image is named")
        if spec.runtime_handler not in self._options.handlers:
            known = ", ".join(repr(one) for one in sorted(self._options.handlers))
            raise invalid(f"there is no runtime handler {spec.runtime_handler!r}: kurma.yml has {known}")
        return str(spec.image)

    def _sweep(self) -> None:
        """Removes the images that kubelet has removed before, and that no container runs any more."""
        used = images_in_use(self._client)
        for listed in self._client.images_list().images:
            if listed.record.released and listed.record.id not in used:
                with contextlib.suppress(ImageError):
                    self._client.image_rm(listed.record.id)


def _is_unavailable(error: FetchError) -> bool:
    """Whether the registry does not answer, as opposed to an answer that helps nothing."""
    if isinstance(error, FetchTimeoutError | FetchTLSError | FetchTruncatedError):
        return True
    status = error.data.get("status")
    if isinstance(status, int):
        return status >= 500 or status == 429
    return isinstance(error, FetchRefusedError) or error.data.get("reason") == "name"


def image_message(image: NodeImage) -> cri.Image:
    """An image as ListImages has it."""
    message = cri.Image(
        id=image.id,
        repo_tags=image.tags,
        repo_digests=image.digests,
        size=image.size,
        spec=cri.ImageSpec(image=(image.tags or image.digests or (image.id,))[0]),
        pinned=image.pinned,
    )
    user = image.facts.user
    if user.isdecimal():
        message.uid.value = int(user)
    else:
        message.username = user
    return message


def credentials_of(auth: cri.AuthConfig) -> FetchCredentials | None:
    """The credentials of a pull; None: kubelet has none.

    :raises RpcError: ``auth`` is not base64 of USER:PASSWORD.
    """
    user, password = auth.username, auth.password
    if not user and auth.auth:
        try:
            text = base64.b64decode(auth.auth, validate=True).decode()
        except ValueError:
            text = ""
        user, colon, password = text.partition(":")
        password = password.rstrip("\0")
        if not colon:
            raise invalid("auth: the credentials are not USER:PASSWORD in base64")
    if not (user or auth.identity_token or auth.registry_token):
        return None
    return FetchCredentials(user, password, auth.identity_token, auth.registry_token, auth.server_address)
