"""Checks the types of a compose file's values before they are converted, and reads texts that variables have
made of numbers and truth values.

A shape is a function of a value and its path. It returns the value to use, or raises :class:`Malformed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from kurma_core.schema import child, describe

Json = Any
Shape = Callable[[Json, str], Json]

_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Malformed(ValueError):
    """A value has another type than its key needs. The text names the path, what is expected and what is found."""

    def __init__(self, path: str, expected: str, value: Json) -> None:
        super().__init__(f"{path}: expected {expected}, found {describe(value)}")


def text(value: Json, path: str) -> Json:
    if not isinstance(value, str):
        raise Malformed(path, "a text", value)
    return value


def scalar(value: Json, path: str) -> Json:
    if not isinstance(value, str | int | float):
        raise Malformed(path, "a text or a number", value)
    return value


def truth(value: Json, path: str) -> bool:
    found = _TRUTH.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise Malformed(path, "true or false", value)
    return found


def integer(value: Json, path: str) -> int:
    try:
        if isinstance(value, str):
            return int(value)
    except ValueError:
        pass
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(path, "a whole number", value)
    return value


def number(value: Json, path: str) -> float:
    found: Json = value
    if isinstance(value, str):
        with suppress(ValueError):
            found = float(value)
    if not isinstance(found, int | float) or isinstance(found, bool) or not isfinite(found):
        raise Malformed(path, "a number", value)
    return found


def many(inner: Shape, expected: str = "a list") -> Shape:
    """A list. :param inner: the shape of its elements."""

    def check(value: Json, path: str) -> Json:
        if not isinstance(value, list):
            raise Malformed(path, expected, value)
        return [inner(one, f"{path}[{place}]") for place, one in enumerate(value)]

    return check


def one_or_many(inner: Shape, expected: str) -> Shape:
    """A value, or a list of such values."""
    several = many(inner, expected)

    def check(value: Json, path: str) -> Json:
        return inner(value, path) if isinstance(value, str | int | float) else several(value, path)

    return check


def members(known: Mapping[str, Shape], needs: tuple[str, ...] = (), expected: str = "an object") -> Shape:
    """An object. Keys without a shape, and null, are left as they are.

    :param needs: the keys that it must have.
    """

    def check(value: Json, path: str) -> Json:
        if not isinstance(value, dict):
            raise Malformed(path, expected, value)
        for key in needs:
            if value.get(key) is None:
                raise Malformed(child(path, key), "a value", None)
        return {
            key: one if one is None or key not in known else known[key](one, child(path, key))
            for key, one in value.items()
        }

    return check


def short_or(short: Shape, whole: Shape, expected: str) -> Shape:
    """An object, or its short form."""

    def check(value: Json, path: str) -> Json:
        if isinstance(value, dict):
            return whole(value, path)
        if isinstance(value, list):
            raise Malformed(path, expected, value)
        return short(value, path)

    return check


def named(inner: Shape, expected: str = "an object") -> Shape:
    """An object whose keys are names. Null is left as it is."""

    def check(value: Json, path: str) -> Json:
        if not isinstance(value, dict):
            raise Malformed(path, expected, value)
        return {name: one if one is None else inner(one, child(path, name)) for name, one in value.items()}

    return check


def names_or(inner: Shape) -> Shape:
    """A list of names, or an object of them."""
    listed, whole = many(text), named(inner)

    def check(value: Json, path: str) -> Json:
        if isinstance(value, dict):
            return whole(value, path)
        if not isinstance(value, list):
            raise Malformed(path, "a list of names, or an object", value)
        return listed(value, path)

    return check


def pairs(value: Json, path: str) -> Json:
    """An object of scalars, or a list of ``NAME=VALUE``."""
    if isinstance(value, dict):
        return named(scalar)(value, path)
    return many(scalar, "an object, or a list of NAME=VALUE")(value, path)


_WORDS = one_or_many(scalar, "a text, or a list of words")
_TEXTS = one_or_many(text, "a text, or a list of texts")
_OBJECT = members({})
_FILE = {"source": text, "target": text, "uid": scalar, "gid": scalar, "mode": scalar}
_FILES = many(short_or(text, members(_FILE, ("source",)), "a name, or an object with source"))
_SOFT_AND_HARD = members({"soft": integer, "hard": integer}, ("soft", "hard"))


def _limit(value: Json, path: str) -> Json:
    """A whole number, or an object of soft and hard limit."""
    return _SOFT_AND_HARD(value, path) if isinstance(value, dict) else integer(value, path)


_ENV_FILE = {"path": text, "required": truth, "format": text}
_LIMITS = {"cpus": number, "memory": scalar, "pids": integer}
_SERVICE: dict[str, Shape] = {
    "annotations": pairs,
    "build": short_or(
        text,
        members({"context": text, "dockerfile": text, "target": text, "args": pairs, "tags": _TEXTS}),
        "a directory, or an object",
    ),
    "cap_add": many(text),
    "cap_drop": many(text),
    "command": _WORDS,
    "configs": _FILES,
    "container_name": text,
    **dict.fromkeys(("cgroup_parent", "ipc", "pid", "userns_mode", "uts"), text),
    **dict.fromkeys(("cpu_period", "cpu_quota", "cpuset"), scalar),
    **dict.fromkeys(("cpu_shares", "oom_score_adj"), integer),
    **dict.fromkeys(("cpu_count", "cpus"), number),
    "depends_on": names_or(members({"condition": text})),
    "deploy": members(
        {
            "replicas": integer,
            "resources": members({"limits": members(_LIMITS), "reservations": _OBJECT}),
            "restart_policy": members({"condition": text}),
        }
    ),
    "devices": many(
        short_or(
            text,
            members({"source": text, "target": text, "permissions": text}, ("source",)),
            "a device, or an object with source",
        )
    ),
    "dns": _TEXTS,
    "dns_opt": _TEXTS,
    "dns_search": _TEXTS,
    "entrypoint": _WORDS,
    "env_file": one_or_many(
        short_or(text, members(_ENV_FILE, ("path",)), "a path, or an object with path"),
        "a path, or a list of paths",
    ),
    "environment": pairs,
    "extends": short_or(text, members({"service": text, "file": text}, ("service",)), "a service, or an object"),
    "extra_hosts": pairs,
    "group_add": many(scalar),
    "healthcheck": members(
        {
            "test": _WORDS,
            "disable": truth,
            "retries": integer,
            **dict.fromkeys(("interval", "timeout", "start_period", "start_interval"), scalar),
        }
    ),
    "hostname": text,
    "image": text,
    "label_file": _TEXTS,
    "labels": pairs,
    "mem_limit": scalar,
    "network_mode": text,
    "networks": names_or(_OBJECT),
    "pids_limit": integer,
    "privileged": truth,
    "profiles": many(text),
    "ports": many(
        short_or(
            scalar,
            members(
                {"target": scalar, "published": scalar, "protocol": text, "host_ip": text},
                ("target",),
            ),
            "a port, or an object with target",
        ),
        "a list of ports",
    ),
    "read_only": truth,
    "restart": scalar,
    "scale": integer,
    "secrets": _FILES,
    "security_opt": many(text),
    "shm_size": scalar,
    "stdin_open": truth,
    "stop_grace_period": scalar,
    "stop_signal": scalar,
    "sysctls": pairs,
    "tmpfs": _TEXTS,
    "tty": truth,
    "ulimits": named(_limit, "an object of limits"),
    "user": scalar,
    "volumes": many(
        short_or(
            text,
            members(
                {
                    "type": text,
                    "source": text,
                    "target": text,
                    "read_only": truth,
                    "bind": members({"create_host_path": truth}),
                    "tmpfs": members({"size": scalar, "mode": scalar}),
                    "volume": members({"subpath": text}),
                    "image": members({"subpath": text}),
                },
                ("target",),
            ),
            "a volume, or an object with target",
        ),
        "a list of volumes",
    ),
    "working_dir": text,
}
#: The keys of a service that are converted.
SERVICE_KEYS = frozenset(_SERVICE)
_TOP = members({"name": text, "file": text, "environment": text, "content": text})


_COMPOSE_FILE: dict[str, Shape] = {
    "name": scalar,
    "services": named(members(_SERVICE), "an object of services"),
    "networks": named(_OBJECT),
    "volumes": named(_TOP),
    "secrets": named(_TOP),
    "configs": named(_TOP),
}


def checked(value: Mapping[str, Json]) -> dict[str, Json]:
    """A compose file whose known keys have values of their types; other keys are left as they are.

    :raises Malformed: a value has another type; or there is no service, or one has no value.
    """
    found: dict[str, Json] = {
        key: one if one is None or key not in _COMPOSE_FILE else _COMPOSE_FILE[key](one, key)
        for key, one in value.items()
    }
    services = found.get("services")
    if not services:
        raise Malformed("services", "an object of services", services)
    for name, service in services.items():
        if service is None:
            raise Malformed(child("services", name), "an object", None)
    return found
