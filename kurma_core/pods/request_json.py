"""A :class:`PodRequest` as JSON: how one process asks another for a pod."""

from __future__ import annotations

from kurma_core.appc import types
from kurma_core.appc._reader import Reader, whole
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ManifestError
from kurma_core.models.network import PROTOCOLS, NetworkRequest, PortMapping
from kurma_core.pods.request import AppOverrides, PodRequest
from kurma_core.schema import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kurma_core.appc._reader import Warn

    Json = Any
_WORDS = ("uuid", "name", "stager", "renderer", "interactive", "terminal", "hostname", "userns")
_FLAGS = {
    "verify": "verify",
    "ephemeral": "ephemeral",
    "strictIsolators": "strict_isolators",
    "strictVolumes": "strict_volumes",
    "allowVolumeLinks": "allow_volume_links",
}
_DNS = ("nameservers", "search", "options")


def to_json(request: PodRequest) -> dict[str, Json]:
    """What :func:`from_json` reads."""
    return {
        "pod": request.template.to_json(),
        **{name: getattr(request, name) for name in _WORDS},
        **{key: getattr(request, name) for key, name in _FLAGS.items()},
        "apps": {app: _overrides_to_json(overrides) for app, overrides in request.overrides.items()},
        "networks": None if request.networks is None else [network.to_json() for network in request.networks],
        "ports": [port.to_json() for port in request.ports],
        "pull": request.pull,
        "insecure": sorted(request.insecure),
        "dns": None if request.dns is None else {name: list(words) for name, words in request.dns.items()},
        "hosts": [{"address": address, "names": list(names)} for address, names in request.hosts],
        "isolators": _pairs_to_json(request.isolators),
        "grants": list(request.grants),
    }


def from_json(document: object, *, warn: Warn | None = None) -> PodRequest:
    """:param document: an object whose ``pod`` is a pod manifest, or a template of one; the rest may be left out.

    :param warn: called with one line for each unknown key.
    :raises ManifestError: it is malformed.
    """
    reader = Reader(document, "$", warn)
    template = PodTemplate.parse(reader.need("pod", "a pod manifest"), warn=warn)
    apps = reader.nested("apps")
    networks = None
    if reader.take("networks") is not None:
        networks = tuple(_network(one) for one in reader.objects("networks"))
    plain: dict[str, Any] = {name: reader.optional(name, types.nonempty) for name in _WORDS}
    plain.update({name: reader.boolean(key, False) for key, name in _FLAGS.items()})
    request = PodRequest(
        template,
        **plain,
        overrides={app.name: _overrides(apps, app.name) for app in template.pod.apps if _has(apps, app.name)},
        networks=networks,
        ports=tuple(_port(one) for one in reader.objects("ports")),
        pull=reader.optional("pull", types.nonempty) or "new",
        insecure=frozenset(reader.strings("insecure", types.nonempty)),
        dns=_dns(reader.nested("dns")),
        hosts=tuple(
            (one.string("address", types.nonempty), one.strings("names", types.nonempty))
            for one in reader.objects("hosts")
        ),
        isolators=_pairs(reader, "isolators"),
        grants=reader.strings("grants", types.nonempty),
    )
    reader.extra()
    return request


def _has(apps: Reader | None, app: str) -> bool:
    return apps is not None and apps.take(app) is not None


def _overrides(apps: Reader | None, app: str) -> AppOverrides:
    reader = apps.nested(app) if apps is not None else None
    if reader is None:
        return AppOverrides()
    return AppOverrides(
        arguments=reader.strings("arguments", types.text),
        exec=reader.strings("exec", types.text),
        user=reader.optional("user", types.nonempty),
        group=reader.optional("group", types.nonempty),
        working_directory=reader.optional("workingDirectory", types.absolute_path),
        environment=tuple(
            (one.string("name", types.environment_name), one.string("value", types.text))
            for one in reader.objects("environment")
        ),
        isolators=_pairs(reader, "isolators"),
    )


def _overrides_to_json(overrides: AppOverrides) -> dict[str, Json]:
    return {
        "arguments": list(overrides.arguments),
        "exec": list(overrides.exec),
        "user": overrides.user,
        "group": overrides.group,
        "workingDirectory": overrides.working_directory,
        "environment": _pairs_to_json(overrides.environment),
        "isolators": _pairs_to_json(overrides.isolators),
    }


def _pairs_to_json(pairs: tuple[tuple[str, Json], ...]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in pairs]


def _pairs(reader: Reader, key: str) -> tuple[tuple[str, Json], ...]:
    return tuple((one.string("name", types.nonempty), one.take("value")) for one in reader.objects(key))


def _network(reader: Reader) -> NetworkRequest:
    return NetworkRequest(
        reader.string("name", types.nonempty),
        reader.optional("interface", types.nonempty),
        reader.strings("ips", types.nonempty),
        reader.optional("mac", types.nonempty),
        reader.boolean("optional", False),
    )


def _port(reader: Reader) -> PortMapping:
    def number(key: str) -> int:
        return whole(reader.need(key, "a port"), reader.at(key), 1, 65535)

    protocol = reader.optional("protocol", types.nonempty) or "tcp"
    if protocol not in PROTOCOLS:
        raise ManifestError(reader.at("protocol"), f"one of {', '.join(PROTOCOLS)}", describe(protocol))
    return PortMapping(
        number("hostPort"), number("podPort"), protocol, reader.optional("hostIP", types.text) or ""
    )


def _dns(reader: Reader | None) -> Mapping[str, tuple[str, ...]] | None:
    return None if reader is None else {name: reader.strings(name, types.nonempty) for name in _DNS}


__all__ = ["from_json", "to_json"]
