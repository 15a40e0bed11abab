"""Values of services whose counterparts in a pod file have another shape: health checks, secrets and builds."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from kurma_compose.compose_file import listed, mode, note_others, pairs, scalar, seconds, whole
from kurma_core.appc.types import sanitize_name
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = Any
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Keys of ``healthcheck`` with durations, and those of ``healthCheck``.
_DURATIONS = {
    "interval": "interval",
    "timeout": "timeout",
    "start_period": "startPeriod",
    "start_interval": "startInterval",
}


def health_check(value: Mapping[str, Json], note: Callable[[str, str], None]) -> Json:
    """``healthCheck`` of an app: an object, or False.

    :param value: of ``healthcheck``. :param note: called with each key without a counterpart, and a text.
    """
    test = value.get("test")
    if value.get("disable") or (isinstance(test, list) and test[:1] == ["NONE"]):
        return False
    found: dict[str, Json] = {}
    if isinstance(test, str):
        found["command"] = test
    elif test is not None:
        kind, *words = [scalar(one) for one in test] or [""]
        if kind not in ("CMD", "CMD-SHELL") or not words:
            raise UsageError(f"malformed test {test} of a health check", hint="write [CMD, PROGRAM, ARGUMENT, …]")
        found["command"] = words if kind == "CMD" else words[0]
    for key, own in _DURATIONS.items():
        # As for Docker, 0 is the default.
        if value.get(key) is not None and (number := seconds(value[key])):
            found[own] = int(number) if number == int(number) else number
    if value.get("retries"):
        found["retries"] = int(value["retries"])
    note_others(note, "healthcheck", value, "test", "disable", "retries", *_DURATIONS)
    return found


def secret_name(project: str, name: str, top: Mapping[str, Json]) -> str:
    """The name of the secret that a name of a compose file means.

    :param top: the element of the section ``secrets``.
    """
    own = top.get("name")
    if own is None and top.get("external"):
        own = name
    return f"{project}-{sanitize_name(name)}" if own is None else str(own)


def secret(entry: Json, project: str, top: Callable[[str], Mapping[str, Json]]) -> dict[str, Json]:
    """An element of ``secrets`` of an app. :param entry: of the service: a name, or an object."""
    given = entry if isinstance(entry, dict) else {"source": entry}
    name = str(given["source"])
    own = secret_name(project, name, top(name))
    target = given.get("target") or name
    found: dict[str, Json] = {"name": own}
    if target != own:
        found["target"] = target
    for key in ("uid", "gid"):
        if given.get(key) is not None:
            found[key] = whole(given[key], key)
    if given.get("mode") is not None:
        found["mode"] = mode(given["mode"])
    return found


def secret_command(project: str, name: str, top: Mapping[str, Json], absolute: Callable[[str], str]) -> str:
    """The command that makes a secret.

    :param absolute: makes a path of the compose file absolute.
    :raises UsageError: its ``environment`` cannot be the name of a variable.
    """
    own = shlex.quote(secret_name(project, name, top))
    if variable := top.get("environment"):
        if not _VARIABLE.fullmatch(variable):
            raise UsageError(f"secret {name}: {variable[:40]!r} cannot be a variable's name")
        # A shell that does not have the variable, perhaps because it is only in .env, says so and stops here.
        return f': "${{{variable}:?}}" && printf %s "${variable}" | kurma secret create {own} -'
    file = top.get("file")
    return f"kurma secret create {own} {'FILE' if file is None else _typed(absolute(file))}"


def locator(image: str) -> str:
    """The locator of an image of a registry: ``nginx`` is ``docker://docker.io/library/nginx``."""
    if "/" not in image:
        return f"docker://docker.io/library/{image}"
    return f"docker://{image}" if _has_registry(image) else f"docker://docker.io/{image}"


def _has_registry(name: str) -> bool:
    """Whether the name of an image begins with the host of a registry."""
    first, slash, _ = name.partition("/")
    return bool(slash) and (first == "localhost" or not {".", ":"}.isdisjoint(first))


def capability(name: str) -> str:
    """The name of a capability: ``net_admin`` is ``CAP_NET_ADMIN``. ``ALL`` stays."""
    name = name.upper()
    return name if name == "ALL" or name.startswith("CAP_") else f"CAP_{name}"


def built_name(image: str | None, project: str, service: str) -> str:
    """The name that ``kurma build`` gives the image of a service.

    :param image: of the service; None: it has none.
    """
    name = image or f"{project}-{sanitize_name(service)}"
    if not _has_registry(name):
        name = f"localhost/{name}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def build_command(
    value: Json, image: str, absolute: Callable[[str], str], note: Callable[[str, str], None]
) -> str:
    """The command that builds the image of a service. :param value: of ``build``."""
    given = value if isinstance(value, dict) else {"context": value}
    context = absolute(given.get("context") or ".")
    words = ["kurma", "build", "-t", image]
    for name in listed(given.get("tags")):
        words += ["-t", name]
    if given.get("dockerfile"):
        words += ["-f", _typed(os.path.join(context, given["dockerfile"]))]
    if given.get("target"):
        words += ["--target", given["target"]]
    for name, one in pairs(given.get("args")).items():
        words += ["--build-arg", name if one is None else f"{name}={one}"]
    for key in given.keys() - {"context", "dockerfile", "target", "args", "tags"}:
        note(f"build.{key}", "not in the command: see kurma build --help")
    return f"{shlex.join(words)} {_typed(context)}"


def _typed(path: str) -> str:
    """An absolute path as a word of a command: relative, if it is below the working directory."""
    below = os.path.relpath(path)
    return shlex.quote(path if below.startswith("..") else below)
