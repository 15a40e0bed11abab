"""The request that adds a container to its sandbox, as an app of the pod."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kurma_core.api.pods import AppOverrides, PodRequest
from kurma_core.models.health import DISABLED, HEALTH_CHECK
from kurma_core.models.pod import LOG_PATH, MAKE_WORKING_DIRECTORY, STOP_SIGNAL
from kurma_core.value import replace
from kurma_cri import resources
from kurma_cri.images import signal_name
from kurma_cri.mounts import app_mounts, grants
from kurma_cri.namespaces import container_grants, container_pid
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import CONTAINER, container_annotation
from kurma_cri.rpc import invalid
from kurma_cri.sandbox_request import host_name
from kurma_cri.security_context import GROUP_POLICY, identity, isolators

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_cri.images import RunImage
    from kurma_cri.records import Sandbox

Json = Any
_ENVIRONMENT = "kurma.io/environment"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def container_request(
    id: str,
    sandbox: Sandbox,
    config: cri.ContainerConfig,
    image: RunImage,
    mounted: Mapping[str, str],
    created_at: int,
    *,
    foreign: bool = False,
) -> PodRequest:
    """:param image: that it runs. :param mounted: the images that it mounts, by ID.
    :param foreign: as of :meth:`.stagers.Stagers.is_foreign`.

    :raises RpcError: the configuration is wrong, or asks for something that this runtime does not do.
    """
    if not config.metadata.name:
        raise invalid("metadata needs a name")
    if config.stop_signal not in cri.Signal.values():
        raise invalid(f"stop_signal: {config.stop_signal} is not a signal")
    security = config.linux.security_context
    kept = cri.ContainerConfig()
    kept.CopyFrom(config)
    if not config.stop_signal:
        kept.MergeFrom(cri.ContainerConfig(stop_signal=image.stop_signal))
    annotations = {
        CONTAINER: container_annotation(kept, image.id, image.reference, created_at),
        GROUP_POLICY: identity(security).policy,
        MAKE_WORKING_DIRECTORY: "true",
        # kubelet has probes of its own, and ignores the health check of an image.
        HEALTH_CHECK: DISABLED,
        **container_pid(sandbox, security.namespace_options, foreign=foreign),
    }
    if config.tty:
        annotations["kurma.io/terminal"] = "true"
    if config.stdin:
        annotations["kurma.io/stdin"] = "once" if config.stdin_once else "keep"
    if config.stop_signal:
        annotations[STOP_SIGNAL] = signal_name(cri.Signal.Name(config.stop_signal))
    log = _log(sandbox, config)
    annotations.update({} if foreign else log)
    app: dict[str, Json] = {
        "name": id,
        "image": image.locator,
        "readOnlyRootFS": security.readonly_rootfs,
        "mounts": app_mounts(sandbox, config, mounted, foreign=foreign),
        "annotations": [{"name": name, "value": value} for name, value in annotations.items()],
    }
    request = PodRequest.from_json({"pod": {"apps": [app]}})
    return replace(
        request,
        pull="never",
        overrides={id: _overrides(config, sandbox, foreign=foreign)},
        grants=(*container_grants(annotations), *grants(config)),
        allow_volume_links=True,
    )


def _log(sandbox: Sandbox, config: cri.ContainerConfig) -> dict[str, str]:
    """The annotation of the container's log: without a path, it has none. If its sandbox has no directory of logs,
    Kurma keeps the log."""
    if not sandbox.config.log_directory:
        return {}
    path = config.log_path
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise invalid(f"log_path {path!r} must be a relative path without '..'")
    return {LOG_PATH: path}


def _overrides(config: cri.ContainerConfig, sandbox: Sandbox, *, foreign: bool) -> AppOverrides:
    """The command, environment and user, over those of the image: ``command`` replaces its entrypoint and its
    arguments, ``args`` its arguments alone."""
    who = identity(config.linux.security_context)
    plain, other = _environment(config)
    if other and foreign:
        raise invalid(f"envs.key: {other[0]['name']!r} is not a name that the handler's stager can set")
    return AppOverrides(
        exec=(*config.command, *config.args) if config.command else (),
        arguments=() if config.command else tuple(config.args),
        user=who.user,
        group=who.group,
        supplementary_gids=who.groups,
        working_directory=config.working_dir or None,
        environment=(("HOSTNAME", host_name(sandbox.config)), *plain),
        isolators=(
            *([(_ENVIRONMENT, {"environment": other})] if other else ()),
            *isolators(config, sandbox.id, sandbox.config.linux.security_context, foreign=foreign),
            *resources.isolators(config.linux.resources, foreign=foreign),
        ),
    )


def _environment(config: cri.ContainerConfig) -> tuple[list[tuple[str, str]], list[Json]]:
    """The variables; and those with names that a manifest does not allow, as Kurma's isolator has them."""
    plain, other = [], []
    for one in config.envs:
        value = one.value.decode("utf-8", "surrogateescape")
        if _PLAIN.fullmatch(one.key):
            plain.append((one.key, value))
        else:
            other.append({"name": one.key, "value": value})
    return plain, other
