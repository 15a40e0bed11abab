"""Compiles ``kurma.io/cdi``: devices by the names of the Container Device Interface, ``vendor.com/class=name``.

Vendors describe their devices in files of ``/etc/cdi`` and ``/var/run/cdi``, in JSON or YAML: device nodes, mounts
and environment variables. Hooks are programs of the host, and a device with hooks is refused.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.json_text import JsonError, loads
from kurma_core.models.isolator import Device, HostMount, IsolatorPlan, inner_path
from kurma_core.schema import SchemaError, describe
from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.hookspecs.isolator import IsolatorHost

Json = Any
#: Directories of the descriptions; a device of a later one replaces that of an earlier one.
DIRECTORIES = ("etc/cdi", "var/run/cdi")
_LIMIT = 4 << 20
_HINT = "see the names in the files of /etc/cdi and /var/run/cdi"
_EDITS = frozenset(("env", "deviceNodes", "mounts"))
_ACCESS = "rwm"


@frozen
class _Description:
    """A device. :param edits: its own and those of its whole file, the file's first. :param file: of the host."""

    file: str
    edits: tuple[dict[str, Json], ...]


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for every device."""
    return tuple(Power(f"{name}={device}") for device in _read(name, value))


def cdi(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles the list of names.

    :raises IsolatorError: there is no such device; its description is wrong, or needs hooks.
    """
    wanted = _read(name, value)
    known = _Files(name, host).devices()
    plan = _Plan(name, host)
    done: list[dict[str, Json]] = []
    for device in wanted:
        if device not in known:
            kind = device.partition("=")[0]
            others = [one for one in known if one.partition("=")[0] == kind]
            raise IsolatorError(
                f"isolator {name}: there is no device {device}",
                hint=f"there are {', '.join(others)}" if others else _HINT,
            )
        for edits in known[device].edits:
            # The edits of a file apply once, however many of its devices an app has.
            if not any(edits is one for one in done):
                done.append(edits)
                plan.add(device, known[device].file, edits)
    return Compiled(plan.made())


def _read(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) and _is_name(one) for one in value):
        raise IsolatorError(
            f"isolator {name}: expected a list of names of devices, got {describe(value)}",
            hint='for instance ["vendor.com/gpu=0"]',
        )
    return list(dict.fromkeys(value))


def _is_name(text: str) -> bool:
    kind, equal, device = text.partition("=")
    vendor, slash, group = kind.partition("/")
    words = (vendor, group, device)
    return bool(equal and slash) and all(
        word
        and word.isascii()
        and word.replace("_", "").replace("-", "").replace(".", "").replace(":", "").isalnum()
        for word in words
    )


class _Files:
    """The descriptions of this host."""

    def __init__(self, name: str, host: IsolatorHost) -> None:
        self._name = name
        self._root = host.root.rstrip("/")

    def devices(self) -> dict[str, _Description]:
        """All devices by name. Files that are not descriptions are errors: a device of theirs may be meant."""
        found: dict[str, _Description] = {}
        for directory in DIRECTORIES:
            here: dict[str, _Description] = {}
            for file in self._files(directory):
                for device, description in self._devices(file):
                    if device in here:
                        raise self._wrong(file, f"{device} is in {here[device].file}, too")
                    here[device] = description
            found.update(here)
        return found

    def _files(self, directory: str) -> list[str]:
        try:
            names = os.listdir(f"{self._root}/{directory}")
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [f"/{directory}/{name}" for name in sorted(names) if name.endswith((".json", ".yaml", ".yml"))]

    def _devices(self, file: str) -> Iterator[tuple[str, _Description]]:
        value = self._load(file)
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            raise self._wrong(file, "it has no kind")
        listed = value.get("devices")
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise self._wrong(file, "it has no list of devices")
        whole = self._edits(file, value.get("containerEdits"))
        for one in listed:
            device = f"{value['kind']}={one.get('name')}"
            if not _is_name(device):
                raise self._wrong(file, f"{describe(device)} is not the name of a device")
            own = self._edits(file, one.get("containerEdits"))
            yield device, _Description(file, (whole, own))

    def _load(self, file: str) -> Json:
        try:
            with open(f"{self._root}{file}", "rb") as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    raise self._wrong(file, "it is not a regular file")
                text = stream.read(_LIMIT + 1)
        except OSError as error:
            raise self._wrong(file, (error.strerror or "").lower()) from None
        if len(text) > _LIMIT:
            raise self._wrong(file, f"it has more than {_LIMIT} bytes")
        if file.endswith(".json"):
            try:
                return loads(text)
            except JsonError as error:
                raise self._wrong(file, str(error)) from None
        import yaml

        try:
            return yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise self._wrong(file, " ".join(str(error).split())) from None

    def _edits(self, file: str, value: Json) -> dict[str, Json]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(file, "containerEdits is not an object")
        return value

    def _wrong(self, file: str, why: str) -> IsolatorError:
        return IsolatorError(f"isolator {self._name}: cannot use the description {file}: {why}")


class _Plan:
    """Collects the devices, mounts and variables of the chosen devices."""

    def __init__(self, name: str, host: IsolatorHost) -> None:
        self._name = name
        self._root = host.root.rstrip("/")
        self._devices: dict[str, Device] = {}
        self._mounts: dict[str, HostMount] = {}
        self._environment: dict[str, str] = {}
        self._where = ""

    def made(self) -> IsolatorPlan:
        return IsolatorPlan(
            devices=tuple(self._devices.values()),
            mounts=tuple(self._mounts.values()),
            environment=self._environment,
        )

    def add(self, device: str, file: str, edits: dict[str, Json]) -> None:
        """:raises IsolatorError: the edits are wrong, or need something that Kurma does not do."""
        self._where = f"isolator {self._name}: cannot use device {device} of {file}"
        for key, value in edits.items():
            if value and key not in _EDITS:
                raise self._wrong(f"it needs {key}, which Kurma does not support")
        for text in self._list(edits, "env", str):
            variable, equal, value = text.partition("=")
            if not equal or not variable:
                raise self._wrong(f"{describe(text)} is not an environment variable")
            self._environment[variable] = value
        for node in self._list(edits, "deviceNodes", dict):
            self._node(node)
        for mount in self._list(edits, "mounts", dict):
            self._mount(mount)

    def _node(self, node: dict[str, Json]) -> None:
        path = node.get("path")
        if not isinstance(path, str) or not path.startswith("/dev/") or ".." in path.split("/"):
            raise self._wrong(f"the device node {describe(path)} is not below /dev")
        source = node.get("hostPath") or path
        status = None
        if None in (node.get("type"), node.get("major"), node.get("minor")):
            try:
                status = os.stat(f"{self._root}{source}")
            except (OSError, TypeError) as error:
                raise self._wrong(f"{source}: {getattr(error, 'strerror', None) or 'wrong'}".lower()) from None
            if not stat.S_ISCHR(status.st_mode) and not stat.S_ISBLK(status.st_mode):
                raise self._wrong(f"{source} is not a device")
        kind = node.get("type") or ("b" if status is not None and stat.S_ISBLK(status.st_mode) else "c")
        access = node.get("permissions") or _ACCESS
        try:
            found = Device.from_json(
                {
                    "path": path,
                    "kind": "c" if kind == "u" else kind,
                    "major": os.major(status.st_rdev) if status is not None else node["major"],
                    "minor": os.minor(status.st_rdev) if status is not None else node["minor"],
                    "access": "".join(letter for letter in _ACCESS if letter in access),
                    "mode": node.get("fileMode") or (0o666 if status is None else stat.S_IMODE(status.st_mode)),
                    "uid": node.get("uid") or 0,
                    "gid": node.get("gid") or 0,
                }
            )
        except (SchemaError, TypeError) as error:
            raise self._wrong(f"the device node {path}: {error}") from None
        self._devices[path] = found

    def _mount(self, mount: dict[str, Json]) -> None:
        source, options = mount.get("hostPath"), mount.get("options") or []
        try:
            target = inner_path(mount.get("containerPath"), "containerPath")
        except SchemaError as error:
            raise self._wrong(str(error)) from None
        if not isinstance(source, str) or not source.startswith("/") or not isinstance(options, list):
            raise self._wrong(f"the mount at {target} has no hostPath, or wrong options")
        self._mounts[target] = HostMount(source, target, "ro" in options)

    def _list(self, edits: dict[str, Json], key: str, kind: type) -> list[Any]:
        value = edits.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
            raise self._wrong(f"{key} is not a list of {'texts' if kind is str else 'objects'}")
        return value

    def _wrong(self, why: str) -> IsolatorError:
        return IsolatorError(f"{self._where}: {why}")
