"""A compose file as a whole: names and order of its services, its volumes, secrets and configs."""

from __future__ import annotations

import os
import shlex
import stat
from typing import TYPE_CHECKING, Any

from kurma_compose import configs, counterparts, merging
from kurma_compose.compose_file import Variables, listed, note_others
from kurma_core.appc.types import sanitize_name
from kurma_core.errors import HostError, UsageError
from kurma_core.named_files import content

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = Any
#: More replicas of a service than this are a typing error.
_MOST_PODS = 1000
_LONGEST_NAME = 63
#: Keys that have a counterpart, of the elements of the sections beside the services.
_FILE = ("name", "external", "file", "environment", "content")
_KNOWN = {"networks": (), "volumes": ("name", "external"), "secrets": _FILE, "configs": _FILE}


class WholeFile:
    """A compose file, while its services are converted.

    :param file: the compose file's value. :param directory: of the compose file.
    :param variables: of the file.
    :param place: makes a relative path of the compose file one of the pod file.
    :param note: called with one line for each key without a counterpart.
    """

    def __init__(
        self,
        file: Mapping[str, Json],
        directory: str,
        variables: Variables,
        place: Callable[[str], str],
        note: Callable[[str], None],
    ) -> None:
        services = merging.in_profiles(file["services"], variables.values.get("COMPOSE_PROFILES", ""), note)
        self._all = frozenset(file["services"])
        self._file = {**file, "services": merging.extended(file["services"])}
        self._file["services"] = {name: self._file["services"][name] for name in services}
        self._directory = directory
        self._variables = variables
        self._place = place
        self._note = note
        #: Contents of files by name, once the pods that have them are converted.
        self.configs: dict[str, str] = {}
        self.project = sanitize_name(str(file.get("name") or os.path.basename(directory) or "project"))

    def in_order(self) -> list[str]:
        """Notes what has no counterpart, and the secrets to make.

        :returns: names of the services, in an order in which each follows those that it depends on.
        :raises UsageError: a name cannot be that of a pod, or services depend on each other.
        """
        for key, value in self._file.items():
            if key not in ("services", "name", "version", "networks", "volumes", "secrets", "configs") and (
                not key.startswith("x-")
            ):
                self._note(f"{key}: no counterpart")
            if key in _KNOWN:
                self._note_top(key, value)
        for name in self._used("configs"):
            if self.top("configs", name).get("external"):
                command = counterparts.secret_command(self.project, name, self.top("configs", name), self.absolute)
                self._note(f"configs.{name}: make it first, as a secret: {command}")
        for name in self._used("secrets"):
            command = counterparts.secret_command(self.project, name, self.top("secrets", name), self.absolute)
            self._note(f"secrets.{name}: make the secret first: {command}")
        self._check_names()
        return self._ordered()

    def _check_names(self) -> None:
        """:raises UsageError: a service's name is not a pod's, or two services would be the same pod."""
        taken: dict[str, str] = {}
        for name in self.services():
            if len(name) > _LONGEST_NAME or not any(one.isalnum() and one.isascii() for one in name):
                raise UsageError(
                    f"service {name[:40]!r}: the name cannot be that of a pod",
                    hint=f"write up to {_LONGEST_NAME} letters and digits, with - between them",
                )
            for pod in self.names(name):
                if pod in taken:
                    raise UsageError(
                        f"services {taken[pod]} and {name} would both be the pod {pod}", hint="rename one of them"
                    )
                taken[pod] = name

    def _used(self, key: str) -> list[str]:
        """Names of the secrets or configs that services use. :param key: the section."""
        entries = [entry for one in self._file["services"].values() for entry in listed(one.get(key))]
        names = [str(one["source"] if isinstance(one, dict) else one) for one in entries]
        return list(dict.fromkeys(names))

    def _note_top(self, key: str, value: Json) -> None:
        for name, one in (value or {}).items():
            if key == "networks" and name != "default":
                self._note(f"networks.{name}: make the network first: kurma network create {shlex.quote(name)}")
            note_others(lambda path, text: self._note(f"{path}: {text}"), f"{key}.{name}", one or {}, *_KNOWN[key])

    def _ordered(self) -> list[str]:
        services = self._file["services"]
        found: dict[str, None] = {}

        def add(name: str, above: tuple[str, ...]) -> None:
            if name in above:
                raise UsageError(f"services depend on each other: {' -> '.join((*above, name))}")
            for other in services[name].get("depends_on") or () if name not in found else ():
                if other not in self._all:
                    raise UsageError(f"services.{name}.depends_on: there is no service {other}")
                if other in services:
                    add(other, (*above, name))
            found[name] = None

        for name in services:
            add(name, ())
        return list(found)

    # -- for a service --

    def names(self, service: str) -> list[str]:
        """The names of a service's pods. :raises UsageError: there are too many."""
        name, value = sanitize_name(service), self.service(service)
        replicas = (value.get("deploy") or {}).get("replicas")
        count = int(value.get("scale", 1) if replicas is None else replicas)
        if not 0 <= count <= _MOST_PODS:
            raise UsageError(f"service {service}: {count} is not a number of pods from 0 to {_MOST_PODS}")
        return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]

    def note(self, service: str, key: str, text: str) -> None:
        self._note(f"services.{service}.{key}: {text}")

    def service(self, name: str) -> dict[str, Json]:
        found: dict[str, Json] = self._file["services"][name]
        return found

    def services(self) -> Mapping[str, Json]:
        found: Mapping[str, Json] = self._file["services"]
        return found

    def place(self, path: str) -> str:
        return self._place(path)

    def absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._directory, os.path.expanduser(path)))

    def top(self, key: str, name: str) -> Mapping[str, Json]:
        """An element of a section of the file. :raises UsageError: the file has none of this name."""
        section = self._file.get(key) or {}
        if name not in section:
            raise UsageError(
                f"a service uses {key}.{name}, which the file does not declare",
                hint=f"declare {name} in the section {key} of the file, as docker compose wants it",
            )
        return section[name] or {}

    def config(self, name: str) -> str:
        """Adds the content of a config to :attr:`configs`. :returns: its name there.

        :raises UsageError: it has none.
        """
        top = self.top("configs", name)
        text = top.get("content")
        if text is None and (variable := top.get("environment")) is not None:
            text = self.values.get(variable)
            if text is None:
                raise UsageError(f"config {name}: the variable {variable} is not set")
        if text is None:
            raise UsageError(
                f"config {name} has no content",
                hint=f"write configs.{name} with file, content or environment",
            )
        if not text:
            raise UsageError(f"config {name} is empty, and cannot be a file")
        self.configs[name] = text
        return name

    def copy(self, name: str, file: str) -> str:
        """Adds the text of a config's file to :attr:`configs`. :returns: why it cannot; empty: it did."""
        path = self.absolute(file)
        try:
            data = content(path, largest=configs.LARGEST)
            text = data.decode()
            private = not os.stat(path).st_mode & stat.S_IROTH
        except HostError as error:
            return error.message
        except UnicodeDecodeError:
            return f"{file} is not a text in UTF-8"
        if private or not text:
            return f"{file} is empty" if not text else f"not every user may read {file}"
        self.configs[name] = text
        return ""

    @property
    def values(self) -> Mapping[str, str]:
        return self._variables.values
