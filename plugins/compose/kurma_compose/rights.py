"""Values of services that give or take rights and resources, as isolators of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_compose.compose_file import note_others, scalar
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

Json = Any
_SELINUX = ("user", "role", "type", "level")
#: Words of ``security_opt`` that say what Kurma does anyway.
_USUAL = {"no-new-privileges:false", "seccomp:builtin", "seccomp:default"}


def security(value: Json, absolute: Callable[[str], str], note: Callable[[str, str], None]) -> dict[str, Json]:
    """The isolators of ``security_opt``.

    :param absolute: makes a path of the compose file absolute.
    :param note: called with the key of each option without a counterpart, and a text.
    """
    found: dict[str, Json] = {}
    context: dict[str, str] = {}
    for option in value:
        text = scalar(option).strip()
        name, _, word = text.replace("=", ":", 1).partition(":")
        if name == "no-new-privileges" and word in ("", "true"):
            found["os/linux/no-new-privileges"] = True
        elif name == "seccomp" and word == "unconfined":
            found["kurma.io/seccomp-profile"] = "unconfined"
        elif name == "seccomp" and word and f"seccomp:{word}" not in _USUAL:
            found["kurma.io/seccomp-profile"] = {"path": absolute(word)}
        elif name == "apparmor" and word:
            found["os/linux/apparmor-profile"] = {"profile": word}
        elif name == "label" and word.partition(":")[0] in _SELINUX:
            part, _, one = word.partition(":")
            context[part] = one
        elif name == "systempaths" and word == "unconfined":
            found["kurma.io/masked-paths"] = found["kurma.io/read-only-paths"] = []
        elif f"{name}:{word}" not in _USUAL:
            note("security_opt", f"{text} has no counterpart")
    if context.keys() == set(_SELINUX):
        found["os/linux/selinux-context"] = context
    elif context:
        note("security_opt", f"a label has no counterpart without all of {', '.join(_SELINUX)}")
    return found


def devices(value: Json, note: Callable[[str, str], None]) -> dict[str, list[Json]]:
    """The isolators of ``devices``: nodes of the host, and devices of the Container Device Interface."""
    nodes: list[Json] = []
    named: list[Json] = []
    for entry in value:
        if isinstance(entry, dict):
            source, target = str(entry["source"]), entry.get("target")
            access = entry.get("permissions")
            note_others(note, "devices", entry, "source", "target", "permissions")
        else:
            source, _, rest = str(entry).partition(":")
            target, _, access = rest.partition(":")
            if not source.startswith("/"):
                named.append(str(entry))
                continue
            if target and not target.startswith("/"):
                target, access = "", target  # /dev/fuse:rw
        access = access or "rwm"
        if not set(access) <= set("rwm"):
            raise UsageError(f"malformed device {entry!r}", hint="write /dev/ON_HOST:/dev/IN_APP:rwm")
        nodes.append({"path": target or source, "hostPath": source, "access": access})
    return {name: some for name, some in (("kurma.io/devices", nodes), ("kurma.io/cdi", named)) if some}


def namespaces(kind: str, value: Json, note: Callable[[str, str], None]) -> dict[str, str]:
    """The part of ``os/linux/namespaces`` for ``ipc``, ``pid`` or ``uts``."""
    if value == "host":
        return {kind: "host"}
    if value not in ("private", "shareable", "none"):
        note(kind, f"{value} has no counterpart: the pod has a namespace of its own")
    return {}


def ulimits(value: Json, note: Callable[[str, str], None]) -> dict[str, list[int]]:
    """The value of ``kurma.io/ulimits`` for ``ulimits``: a number, or ``soft`` and ``hard``, by name."""
    found = {}
    for name, limit in value.items():
        if limit is None:
            continue
        given = limit if isinstance(limit, dict) else {"soft": limit, "hard": limit}
        note_others(note, f"ulimits.{name}", given, "soft", "hard")
        found[name] = [given["soft"], given["hard"]]
    return found
