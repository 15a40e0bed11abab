"""Services that extend others of their file, and those that profiles leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_compose.compose_file import listed, pairs
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = Any
#: Keys whose lists replace each other, as the compose specification says.
_REPLACED = {"command", "entrypoint", "test"}
#: Keys that may be lists of ``NAME=VALUE`` or objects.
_PAIRS = {"annotations", "args", "environment", "labels", "sysctls"}
#: Keys whose lists have one element for each path in the container.
_BY_TARGET = {"devices", "volumes"}
#: Keys that the extending service does not get.
_OWN = {"depends_on", "links", "volumes_from"}


def extended(services: Mapping[str, Json]) -> dict[str, Json]:
    """The services, with what they extend.

    :raises UsageError: one extends itself, or a service that the file does not have.
    """
    found: dict[str, Json] = {}

    def whole(name: str, above: tuple[str, ...]) -> Json:
        if name in above:
            raise UsageError(f"services extend each other: {' -> '.join((*above, name))}")
        if name not in found:
            value = dict(services[name])
            base = value.pop("extends", None)
            if base is not None:
                given = base if isinstance(base, dict) else {"service": base}
                other = str(given.get("service"))
                if given.get("file") is not None or other not in services:
                    raise UsageError(
                        f"services.{name}.extends: there is no service {other} in this file",
                        hint="copy it into the file: a service of another file has no counterpart",
                    )
                kept = {key: one for key, one in whole(other, (*above, name)).items() if key not in _OWN}
                value = _merged(kept, value)
            found[name] = value
        return found[name]

    return {name: whole(name, ()) for name in services}


def _merged(base: Mapping[str, Json], own: Mapping[str, Json]) -> dict[str, Json]:
    result = dict(base)
    for key, value in own.items():
        had = result.get(key)
        if key in _PAIRS and had is not None and value is not None:
            result[key] = {**pairs(had), **pairs(value)}
        elif key in _BY_TARGET and isinstance(had, list) and isinstance(value, list):
            own_targets = {_target(one) for one in value}
            result[key] = [*(one for one in had if _target(one) not in own_targets), *value]
        elif key == "networks" and had is not None and value is not None and type(had) is not type(value):
            result[key] = {**_named(had), **_named(value)}
        elif key == "extra_hosts" and had is not None and value is not None and type(had) is not type(value):
            result[key] = [*_lines(had), *_lines(value)]
        elif isinstance(had, dict) and isinstance(value, dict):
            result[key] = _merged(had, value)
        elif isinstance(had, list) and isinstance(value, list) and key not in _REPLACED:
            result[key] = [*had, *(one for one in value if one not in had)]
        else:
            result[key] = value
    return result


def _target(value: Json) -> str:
    """The path in the container, of a volume or device in its short or long form."""
    if isinstance(value, dict):
        return str(value.get("target"))
    first, *rest = str(value).split(":")
    return rest[0] if rest else first


def _named(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else dict.fromkeys(value)


def _lines(value: Json) -> list[str]:
    return value if isinstance(value, list) else [f"{name}={one}" for name, one in value.items()]


def in_profiles(services: Mapping[str, Json], active: str, note: Callable[[str], None]) -> dict[str, Json]:
    """The services that have no profiles, or one that is active.

    :param active: the variable COMPOSE_PROFILES: names with commas between them; ``*``: all.
    """
    names = {name.strip() for name in active.split(",")}
    found = {}
    for name, value in services.items():
        profiles = [str(one) for one in listed(value.get("profiles"))]
        if not profiles or "*" in names or names & set(profiles):
            found[name] = value
        else:
            note(f"services.{name}: left out: COMPOSE_PROFILES names none of its profiles, {', '.join(profiles)}")
    return found
