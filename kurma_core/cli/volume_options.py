"""``-v``, ``--volume``, ``--mount``, ``--tmpfs`` and ``--secret``: makes volumes and secrets of a pod."""

from __future__ import annotations

import os

from kurma_core.cli import values
from kurma_core.errors import ManifestError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.appc.secrets import AppSecret

    Json = Any

_KEYS = (
    "name",
    "kind",
    "source",
    "readOnly",
    "recursive",
    "idmap",
    "propagation",
    "create",
    "recursiveReadOnly",
    "image",
    "subPath",
    "mode",
    "uid",
    "gid",
    "volume",
)
#: Keys of Kurma's own in a pod file, for keys of options.
_OWN = {
    "idmap": "kurma.io/idmap",
    "propagation": "kurma.io/propagation",
    "create": "kurma.io/create",
    "recursiveReadOnly": "kurma.io/recursive-read-only",
    "image": "kurma.io/image",
    "subPath": "kurma.io/sub-path",
}
_FLAGS = ("readOnly", "recursive", "idmap", "create", "recursiveReadOnly")
#: Words of ``-v``, with the keys and values that they mean.
_WORDS: dict[str, tuple[str, Json]] = {
    "ro": ("readOnly", True),
    "rw": ("readOnly", False),
    "idmap": ("kurma.io/idmap", True),
    "create": ("kurma.io/create", True),
    "rro": ("kurma.io/recursive-read-only", True),
    "private": ("kurma.io/propagation", "private"),
    "rslave": ("kurma.io/propagation", "rslave"),
    "rshared": ("kurma.io/propagation", "rshared"),
}
#: Words of ``-v`` that are options of the mount.
_OPTIONS = ("noexec", "nosuid", "nodev")
#: The power that a volume with the propagation ``rshared`` needs. Its option gives the power.
_SHARED = "kurma.io/propagation=rshared"


def add(
    document: dict[str, Json], app: dict[str, Json] | None, options: dict[str, Any], *, own: bool = False
) -> tuple[str, ...]:
    """Adds the volumes and mounts of the options to the document of a pod.

    :param app: its only app, to which ``-v``, ``--mount`` and ``--tmpfs`` belong; None: none of these was given.
    :param options: values of :data:`kurma_core.cli.pod_options.POD_OPTIONS` by name.
    :param own: volumes of ``-v`` and ``--tmpfs`` belong to the app; in a conflict, they get other names than the
        pod's.
    :returns: the grants that the options imply.
    :raises UsageError: one is malformed.
    """
    defined = [_volume(text) for text in options["volume"]]
    volumes: list[Json] = [*(document.get("volumes") or []), *defined]
    mounts: list[Json] = [] if app is None else list(app.get("mounts") or [])
    taken = {volume.get("name") for volume in volumes if isinstance(volume, dict)}
    made = [*(_bind(text) for text in options["bind"]), *(_tmpfs(text) for text in options["tmpfs"])]
    for target, volume in made:
        name = volume["name"] = _free_name(target, taken)
        if own:
            mounts.append({"volume": name, "path": target, "appVolume": volume})
            continue
        volumes.append(volume)
        mounts.append({"volume": name, "path": target})
    for text in options["mount"]:
        mount, image = _mount(text)
        if image is not None:
            mount["volume"] = image["name"] = _free_name(mount["path"], taken)
            if own:
                mount["appVolume"] = image
            else:
                volumes.append(image)
        mounts.append(mount)
    if volumes:
        document["volumes"] = volumes
    if app is not None and mounts:
        app["mounts"] = mounts
    given = (*defined, *(volume for _, volume in made))
    return (_SHARED,) if any(volume.get(_OWN["propagation"]) == "rshared" for volume in given) else ()


def _bind(text: str) -> tuple[str, dict[str, Json]]:
    """``SOURCE:TARGET[:WORD,…]``, with :data:`_WORDS`; a relative source is one of the current directory. A source
    without a slash is the name of a named volume.

    :returns: the target, and the volume without its name.
    """
    source, colon, rest = text.partition(":")
    target, more, last = rest.partition(":")
    words = last.split(",") if more else []
    mount_options = [word for word in words if word in _OPTIONS]
    keys = [*(_WORDS[word][0] for word in words if word in _WORDS), *mount_options]
    if not (source and colon and target.startswith("/")) or len({*keys}) < len(words):
        known = ", ".join((*_WORDS, *_OPTIONS))
        hint = f"write SOURCE:TARGET[:OPTION,…], e.g. ./data:/data:ro; options: {known}"
        if {"z", "Z"}.intersection(words):
            hint = "Kurma sets no SELinux labels: leave out z and Z, and use chcon(1)"
        raise UsageError(f"-v: malformed {text!r}", hint=hint)
    volume: dict[str, Json]
    if "/" in source or source in (".", ".."):
        volume = {"kind": "host", "source": _absolute(source, "-v"), "readOnly": "rro" in words}
    else:
        volume = _named(source, [word for word in words if word not in (*_OF_NAMED, *_OPTIONS)])
    volume.update(_WORDS[word] for word in words if word in _WORDS)
    if mount_options:
        volume["kurma.io/options"] = mount_options
    return values.inner_path(target, "-v: target"), volume


#: Words of ``-v`` that a named volume may have, besides options of the mount.
_OF_NAMED = ("ro", "rw")


def _named(name: str, words: list[str]) -> dict[str, Json]:
    """:param words: those of host volumes alone."""
    from kurma_core.appc.types import volume_name

    try:
        volume_name(name, "")
    except ManifestError as error:
        raise UsageError(
            f"-v: {name!r} is neither a path nor the name of a volume",
            hint=f"write ./{name} for a path; a name has {error.data['expected']}",
        ) from None
    if words:
        raise UsageError(
            f"-v: a named volume cannot have {', '.join(words)}",
            hint=f"options: {', '.join((*_OF_NAMED, *_OPTIONS))}; or write ./{name} for a directory of the host",
        )
    return {"kind": "named", "volume": name}


#: Options that hold anyway.
_OF_TMPFS = frozenset(("rw", "nosuid", "nodev", "noexec"))
#: As mount(8) has them, beside quantities.
_SIZES = {"k": "Ki", "m": "Mi", "g": "Gi"}


def _tmpfs(text: str) -> tuple[str, dict[str, Json]]:
    """``TARGET[:OPTION,…]``, with podman's options: ``size``, ``mode`` (1777), ``uid``, ``gid``, ``ro``.

    :returns: as :func:`_bind`.
    """
    target, colon, rest = text.partition(":")
    volume: dict[str, Json] = {"kind": "empty", "kurma.io/memory": True, "mode": "1777"}
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key == "size" and value:
            volume["kurma.io/size"] = _size(value)
        elif key == "mode" and value:
            volume["mode"] = values.mode(value, "--tmpfs")
        elif key in ("uid", "gid") and values.is_id(value):
            volume[key] = int(value)
        elif part == "ro":
            volume["readOnly"] = True
        elif part not in _OF_TMPFS:
            hint = "write TARGET[:size=64Mi][,mode=1777][,uid=0][,gid=0][,ro]; no program on it can be executed"
            raise UsageError(f"--tmpfs: malformed {part!r} in {text!r}", hint=hint)
    return values.inner_path(target, "--tmpfs"), volume


def _size(text: str) -> str:
    from kurma_core.appc.quantity import parse_quantity

    size = text[:-1] + _SIZES.get(text[-1], text[-1])
    try:
        if parse_quantity(size, "--tmpfs"):
            return size
        expected = "more than 0 bytes"
    except ManifestError as error:
        expected = str(error.data.get("expected"))
    raise UsageError(f"--tmpfs: size: expected {expected}, found {text!r}", hint="for instance size=64Mi")


def _absolute(source: str, option: str) -> str:
    """A path of the host, from the current directory, without ``.`` and ``..``.

    :raises UsageError: ``..`` follows a symbolic link, where the shell and the kernel mean different places.
    """
    try:
        path = os.path.join(os.getcwd(), source)
    except OSError as error:
        raise UsageError(f"{option}: {source!r}: the current directory was removed ({error.strerror})") from None
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and os.path.islink("/" + "/".join(parts)):
            raise UsageError(
                f"{option}: {source!r} has .. after the symbolic link /{'/'.join(parts)}",
                hint=f"write the link's target: {os.path.realpath(path)}",
            )
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _free_name(target: str, taken: set[Any]) -> str:
    from kurma_core.appc.types import sanitize_name

    base = "root" if target.strip("/.") == "" else sanitize_name(target)
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    taken.add(name)
    return name


def _volume(text: str) -> dict[str, Json]:
    from kurma_core.appc.pod import Volume

    volume: dict[str, Json] = {}
    seen: set[str] = set()
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if key in seen:
            raise UsageError(f"--volume: {key} is given twice in {text!r}", hint="give each key once")
        seen.add(key)
        if key in _FLAGS:
            if value not in ("", "true", "false") or (equals and not value):
                raise UsageError(f"--volume: {key} must be true or false, not {value!r}")
            volume[_OWN.get(key, key)] = value != "false"
        elif key in ("uid", "gid"):
            if not values.is_id(value):
                raise UsageError(f"--volume: {key} must be a number, not {value!r}")
            volume[key] = int(value)
        elif key == "mode":
            volume[key] = values.mode(value, "--volume")
        elif key == "source" and value:
            volume[key] = _absolute(value, "--volume")
        elif key in ("name", "kind", "propagation", "image", "subPath", "volume") and value:
            volume[_OWN.get(key, key)] = value
        else:
            hint = "write name=NAME,kind=host,source=PATH, name=NAME,kind=empty, name=NAME,image=IMAGE or "
            hint += "name=NAME,volume=VOLUME"
            if key not in _KEYS:
                hint = f"keys: {', '.join(_KEYS)}"
            raise UsageError(f"--volume: malformed {part!r} in {text!r}", hint=hint)
    kinds = {"source": "host", _OWN["image"]: "image", "volume": "named"}
    volume.setdefault("kind", next((kind for key, kind in kinds.items() if key in volume), "empty"))
    if "name" not in volume:
        raise UsageError(f"--volume: {text!r} has no name", hint="write name=NAME,…")
    try:
        Volume.parse(volume, "$")
    except ManifestError as error:
        where, expected, found = (str(error.data[each]) for each in ("path", "expected", "found"))
        raise UsageError(f"--volume: {where.removeprefix('$.')}: expected {expected}, found {found}") from None
    return volume


def _mount(text: str) -> tuple[dict[str, Json], dict[str, Json] | None]:
    """``volume=NAME,target=PATH``, ``type=volume,source=VOLUME,target=PATH[,subpath=PATH]``, or
    ``type=image,source=IMAGE,target=PATH[,subpath=PATH]``.

    :returns: the mount, and its volume without a name if that is a named one or of an image; the mount has no
        volume then.
    """
    parts = dict(values.pair(part, "--mount") for part in text.split(","))
    needs = {"type", "source", "target"}
    if parts.get("type") == "volume" and needs <= {*parts} <= {*needs, "subpath"}:
        named = _named(parts["source"], [])
        if "subpath" in parts:
            named["kurma.io/sub-path"] = parts["subpath"]
        return {"path": values.inner_path(parts["target"], "--mount: target")}, named
    if parts.get("type") == "image" and needs <= {*parts} <= {*needs, "subpath"}:
        image: dict[str, Json] = {"kind": "image", "kurma.io/image": parts["source"]}
        if "subpath" in parts:
            image["kurma.io/sub-path"] = parts["subpath"]
        return {"path": values.inner_path(parts["target"], "--mount: target")}, image
    if set(parts) != {"volume", "target"}:
        hint = "write volume=NAME,target=PATH, type=volume,source=VOLUME,target=PATH[,subpath=PATH], or "
        hint += "type=image,source=IMAGE,target=PATH[,subpath=PATH]"
        target = parts.get("target") or "PATH"
        if parts.get("type") == "bind":
            hint = f"-v {parts.get('source') or 'SOURCE'}:{target}"
        elif parts.get("type") == "tmpfs":
            hint = f"--tmpfs {target}"
        raise UsageError(f"--mount: malformed {text!r}", hint=hint)
    return {"volume": parts["volume"], "path": values.inner_path(parts["target"], "--mount: target")}, None


# --- secrets -----------------------------------------------------------------------------------------------------

_FORM = "write NAME[,target=PATH][,uid=0][,gid=0][,mode=0444], or NAME,type=env[,target=VARIABLE]"
_SECRET_KEYS = ("source", "type", "target", "uid", "gid", "mode")
#: Other words for these keys.
_SECRET_WORDS = {"src": "source", "dst": "target", "destination": "target"}


def add_secrets(app: dict[str, Json], texts: tuple[str, ...]) -> None:
    """Adds the secrets of the option to an app in a pod's document.

    :raises UsageError: one is malformed, or two have the same target.
    """
    from kurma_core.appc.manifest_reader import Reader
    from kurma_core.appc.secrets import conflicts, read_secrets

    found: list[dict[str, Json]] = []
    read: list[AppSecret] = []
    for text in texts:
        secret = _secret(text)
        try:
            read += read_secrets(Reader({"secrets": [dict(secret)]}, "$", None))
        except ManifestError as error:
            where, expected, was = (str(error.data[each]) for each in ("path", "expected", "found"))
            key = where.removeprefix("$.secrets[0].")
            raise UsageError(f"--secret: {key}: expected {expected}, found {was}", hint=_FORM) from None
        found.append(secret)
    if clashes := conflicts(read):
        raise UsageError(
            f"--secret: the targets overlap: {'; '.join(clashes)}",
            hint="give each secret a target of its own: --secret NAME,target=PATH",
        )
    app["secrets"] = [*(app.get("secrets") or []), *found]


def _secret(text: str) -> dict[str, Json]:
    """``NAME[,type=mount|env][,target=PATH|VARIABLE][,uid=…][,gid=…][,mode=…]``, as podman has it, or with
    ``source=NAME`` at any place, as other engines have it."""
    first, *parts = text.split(",")
    name: str | None = first
    if first.partition("=")[0] in (*_SECRET_KEYS, *_SECRET_WORDS) and "=" in first:
        name, parts = None, [first, *parts]
    given: dict[str, str] = {}
    for part in parts:
        key, _, value = part.partition("=")
        key = _SECRET_WORDS.get(key, key)
        if key in given or not value or key not in _SECRET_KEYS or (key == "source" and name is not None):
            raise UsageError(f"--secret: malformed {part!r} in {text!r}", hint=_FORM)
        given[key] = value
    name = given.pop("source", name)
    if not name:
        raise UsageError(f"--secret: {text!r} names no secret", hint=_FORM)
    secret: dict[str, Json] = {"name": name}
    kind = given.pop("type", "mount")
    if kind not in ("mount", "env"):
        raise UsageError(f"--secret: {text!r}: type must be mount or env", hint=_FORM)
    if kind == "env":
        secret["environment"] = given.pop("target", name)
    for key, value in given.items():
        if key in ("uid", "gid"):
            if not values.is_id(value):
                raise UsageError(f"--secret: {key} must be a number, not {value!r}", hint=_FORM)
            secret[key] = int(value)
        else:
            secret[key] = values.mode(value, "--secret") if key == "mode" else value
    return secret
