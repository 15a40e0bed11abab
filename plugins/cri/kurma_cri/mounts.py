"""The mounts of a container, as volumes of its app."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import KurmaError, StagerError
from kurma_core.linux.mounts import ATTR_RDONLY, set_attributes
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import RpcError, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_cri.images import Images
    from kurma_cri.records import Sandbox

Json = Any
#: Kubelet recognizes errors by these beginnings.
IMAGE_FAILED, RRO_UNSUPPORTED = "ImageVolumeMountFailed", "RROUnsupported"
#: The power of an app whose mounts appear on the host.
SHARED_MOUNTS = "kurma.io/propagation=rshared"
_PROPAGATIONS = {
    cri.PROPAGATION_PRIVATE: "private",
    cri.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    cri.PROPAGATION_BIDIRECTIONAL: "rshared",
}
_OPTIONS = ("noexec", "nosuid", "nodev")
_PREFIX = "mount-"
_SELINUX = "/sys/fs/selinux/enforce"


def kernel_sets_attributes() -> bool:
    """Whether the kernel changes mounts with all mounts below them, and maps owners of mounts: since Linux 5.12,
    and where no filter of a container around kurmad forbids it."""
    try:
        set_attributes(-1, ATTR_RDONLY)
    except OSError as error:
        return error.errno == errno.EBADF
    return True


def with_image_ids(images: Images, config: cri.ContainerConfig) -> tuple[cri.ContainerConfig, dict[str, str]]:
    """The configuration with the IDs of the images that are mounted, and the images in Kurma's store by these IDs.

    :raises KurmaError, RpcError: the store lacks one.
    """
    if not any(mount.HasField("image") for mount in config.mounts):
        return config, {}
    found, locators = cri.ContainerConfig(), {}
    found.CopyFrom(config)
    for mount in found.mounts:
        if mount.HasField("image"):
            try:
                image = images.run_image(mount.image.image)
            except KurmaError as error:
                error.prefix(IMAGE_FAILED)
                raise
            except RpcError as error:
                raise RpcError(error.code, f"{IMAGE_FAILED}: {error.message}") from None
            mount.image.image, mount.image.image_ref = image.id, image.reference
            locators[image.id] = image.locator
    return found, locators


def app_mounts(
    sandbox: Sandbox, config: cri.ContainerConfig, images: Mapping[str, str], *, foreign: bool = False
) -> list[Json]:
    """The mounts of the app, each with a volume of its own.

    :param images: as from :func:`with_image_ids`.
    :param foreign: the stager decides whether a read-only mount covers the mounts below it.
    :raises RpcError: one is malformed, or asks for something that this runtime does not do.
    """
    found = []
    for number, mount in enumerate(config.mounts):
        one = _mount(f"{_PREFIX}{number}", mount, sandbox, images)
        if foreign and not mount.recursive_read_only:
            one["appVolume"].pop("kurma.io/recursive-read-only", None)
        found.append(one)
    return found


def grants(config: cri.ContainerConfig) -> tuple[str, ...]:
    """The powers that the mounts need: kubelet has checked that the container may have them."""
    shared = any(mount.propagation == cri.PROPAGATION_BIDIRECTIONAL for mount in config.mounts)
    return (SHARED_MOUNTS,) if shared else ()


def explained(error: KurmaError, config: cri.ContainerConfig) -> None:
    """Adds the beginning by which kubelet recognizes the error of a mount."""
    number = str(error.data.get("volume", "")).rpartition(_PREFIX)[2]
    if number.isdecimal() and int(number) < len(config.mounts) and config.mounts[int(number)].HasField("image"):
        error.prefix(IMAGE_FAILED)
    elif isinstance(error, StagerError) and any(mount.recursive_read_only for mount in config.mounts):
        error.prefix(RRO_UNSUPPORTED)


def _mount(name: str, mount: cri.Mount, sandbox: Sandbox, images: Mapping[str, str]) -> Json:
    path = mount.container_path
    if not path.startswith("/"):
        raise invalid(f"mounts: container_path {path!r} must be absolute")
    volume = _image(mount, images) if mount.HasField("image") else _host(mount, sandbox)
    options = list(dict.fromkeys(mount.mount_options))
    for option in options:
        if option not in _OPTIONS:
            raise invalid(f"mounts: {path}: mount_options {option!r} is none of {', '.join(_OPTIONS)}")
    if options:
        volume["kurma.io/options"] = options
    return {"volume": name, "path": path, "appVolume": {"name": name, **volume}}


def _image(mount: cri.Mount, images: Mapping[str, str]) -> dict[str, Json]:
    where = f"mounts: {mount.container_path}"
    for wrong, text in (
        (not mount.readonly, "an image is mounted read-only: readonly must be true"),
        (mount.host_path, "host_path must be empty for an image"),
        (not mount.image.image, "the image has no name"),
        (mount.propagation != cri.PROPAGATION_PRIVATE, "propagation must be private for an image"),
    ):
        if wrong:
            raise invalid(f"{IMAGE_FAILED}: {where}: {text}")
    volume = {"kind": "image", "readOnly": True, "kurma.io/image": images[mount.image.image]}
    parts = [part for part in mount.image_sub_path.split("/") if part not in ("", ".")]
    if ".." in parts or mount.image_sub_path.startswith("/"):
        raise invalid(f"{IMAGE_FAILED}: {where}: image_sub_path must be a relative path without '..'")
    return {**volume, "kurma.io/sub-path": "/".join(parts)} if parts else volume


def _host(mount: cri.Mount, sandbox: Sandbox) -> dict[str, Json]:
    where = f"mounts: {mount.container_path}"
    if not mount.host_path.startswith("/"):
        raise invalid(f"mounts: host_path {mount.host_path!r} must be absolute")
    if mount.image_sub_path:
        raise invalid(f"{where}: image_sub_path is for images")
    if mount.selinux_relabel and os.path.exists(_SELINUX):
        raise invalid(f"{where}: selinux_relabel is not supported on a node with SELinux")
    volume: dict[str, Json] = {
        "kind": "host",
        "source": mount.host_path,
        "readOnly": mount.readonly,
        "kurma.io/create": True,
        "kurma.io/propagation": _propagation(mount),
    }
    if mount.recursive_read_only:
        if not mount.readonly or mount.propagation != cri.PROPAGATION_PRIVATE:
            needs = "propagation private" if mount.readonly else "readonly"
            raise invalid(f"{RRO_UNSUPPORTED}: {where}: recursive_read_only needs {needs}")
        if not kernel_sets_attributes():
            raise invalid(f"{RRO_UNSUPPORTED}: {where}: recursive_read_only needs Linux 5.12 or later")
        volume["kurma.io/recursive-read-only"] = True
    elif mount.readonly:
        volume["kurma.io/recursive-read-only"] = False
    if _mapped(mount, sandbox):
        volume["kurma.io/idmap"] = True
    return volume


def _propagation(mount: cri.Mount) -> str:
    word = _PROPAGATIONS.get(mount.propagation)
    if word is None:
        raise invalid(f"mounts: {mount.container_path}: propagation {mount.propagation} is not known")
    return word


def _mapped(mount: cri.Mount, sandbox: Sandbox) -> bool:
    """Whether the owners of the mount's files are mapped to the sandbox's user namespace: kubelet gives each mount
    the sandbox's own ranges."""
    if not mount.uidMappings and not mount.gidMappings:
        return False
    options = sandbox.config.linux.security_context.namespace_options.userns_options
    if (list(mount.uidMappings), list(mount.gidMappings)) != (list(options.uids), list(options.gids)):
        where = f"mounts: {mount.container_path}"
        raise invalid(f"{where}: uidMappings and gidMappings must be those of the sandbox's user namespace")
    return True
