"""Variables of containers, and the values of ConfigMaps and Secrets that they and volumes use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kurma_core.appc.types import environment_name, fits
from kurma_core.errors import UsageError
from kurma_kube import objects as names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kurma_kube.fields import Fields
    from kurma_kube.objects import Objects

Json = Any
_AS_FILE = "no variable can have the value: mount it as a file"
_REFERENCE = re.compile(r"\$(?:\$|\(([^()]+)\))")


class Values:
    """The values of the ConfigMaps and Secrets of a file.

    :param stored: gives the names of Kurma's secrets, for Secrets that the file does not have.
    :ivar files: contents of files of ConfigMaps, by the names of the secrets that they need.
    """

    def __init__(self, objects: Objects, stored: Callable[[], Iterable[str]]) -> None:
        self._objects = objects
        self._stored = stored
        self.files: dict[str, bytes] = {}

    def keys_of(self, kind: str, name: str, optional: bool, place: str) -> list[str]:
        """The keys of a ConfigMap or Secret. :raises UsageError: there is none of that name."""
        prefix = names.secret_prefix(name)
        found: Mapping[str, object] | None
        if kind == "configMap":
            found = self._objects.configs.get(name)
        elif name in self._objects.secrets:
            found = self._objects.secrets[name]
        else:
            found = {one.removeprefix(prefix): b"" for one in self._stored() if one.startswith(prefix)} or None
        if found is None and not optional:
            raise _missing(kind, name, place)
        return list(found or ())

    def text(self, name: str, key: str, optional: bool, place: str) -> str | None:
        """The text of a ConfigMap's key; None: it is optional, and there is none."""
        value = self._config(name, key, optional, place)
        if isinstance(value, bytes):
            raise UsageError(f"{place}: key {key} of ConfigMap {name} is in binaryData", hint=_AS_FILE)
        return value

    def is_binary(self, name: str, key: str) -> bool:
        """Whether a key of a ConfigMap is in ``binaryData``, so that no variable has its value."""
        return isinstance(self._objects.configs.get(name, {}).get(key), bytes)

    def variable(self, name: str, key: str, place: str) -> str:
        """The name of Kurma's secret for a variable. :raises UsageError: no variable can have the value."""
        if b"\0" in self._objects.secrets.get(name, {}).get(key, b""):
            raise UsageError(f"{place}: key {key} of Secret {name} has a NUL byte", hint=_AS_FILE)
        return names.secret_name(name, key)

    def secret(self, name: str, key: str, optional: bool, place: str) -> str | None:
        """The name of Kurma's secret for the key of a Secret; None: it is optional, and there is none."""
        if key not in self.keys_of("secret", name, optional, place):
            if not optional:
                raise UsageError(f"{place}: Secret {name} has no key {key}")
            return None
        return names.secret_name(name, key)

    def file(self, kind: str, name: str, key: str, optional: bool, place: str) -> str | None:
        """The name of Kurma's secret for a file; None: it is optional, and there is none."""
        if kind == "secret":
            return self.secret(name, key, optional, place)
        value = self._config(name, key, optional, place)
        if value is None:
            return None
        if not value:
            raise UsageError(f"{place}: key {key} of ConfigMap {name} is empty, and cannot be a file")
        content = value.encode() if isinstance(value, str) else value
        if len(content) > names.LARGEST:
            most = f"{names.LARGEST >> 10} KiB"
            raise UsageError(f"{place}: key {key} of ConfigMap {name} is larger than {most}, and cannot be a file")
        secret = names.config_name(name, key, content)
        self.files[secret] = content
        return secret

    def _config(self, name: str, key: str, optional: bool, place: str) -> str | bytes | None:
        found = self._objects.configs.get(name)
        if found is not None and key in found:
            return found[key]
        if optional:
            return None
        if found is None:
            raise _missing("configMap", name, place)
        raise UsageError(f"{place}: ConfigMap {name} has no key {key}")


def _missing(kind: str, name: str, place: str) -> UsageError:
    if kind == "configMap":
        return UsageError(f"{place}: there is no ConfigMap {name}", hint="add it to the file, or give --configmap")
    return UsageError(
        f"{place}: there is no Secret {name}",
        hint=f"add it to the file, or: kurma secret create {names.secret_prefix(name)}KEY FILE",
    )


class Environment:
    """The variables of a container.

    :ivar plain: values by name. :ivar secrets: names of Kurma's secrets by name.
    """

    def __init__(self, container: Fields, facts: Mapping[str, str], values: Values) -> None:
        self.plain: dict[str, str] = {}
        self.secrets: dict[str, str] = {}
        self._facts = facts
        self._values = values
        for source in container.children("envFrom"):
            self._all_of(source)
        for variable in container.children("env"):
            name = variable.required("name")
            self.plain.pop(name, None)
            self.secrets.pop(name, None)
            origin = variable.child("valueFrom")
            if origin is None:
                self.plain[name] = self.expanded(variable.text("value") or "", variable.place)
            else:
                self._one_of(name, origin)
            variable.done()

    def expanded(self, text: str, place: str) -> str:
        """A text with the values of variables in place of ``$(NAME)``; ``$$`` is ``$``."""

        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name is None:
                return "$"
            if name in self.secrets:
                raise UsageError(
                    f"{place}: $({name}) is a secret, and would appear in the pod's record",
                    hint="use it in the container, as a variable of a shell",
                )
            return self.plain.get(name, match[0])

        return _REFERENCE.sub(value, text)

    def _all_of(self, source: Fields) -> None:
        prefix = source.text("prefix") or ""
        for key, kind in (("configMapRef", "configMap"), ("secretRef", "secret")):
            inner = source.child(key)
            if inner is None:
                continue
            name, optional = inner.required("name"), bool(inner.boolean("optional"))
            for one in self._values.keys_of(kind, name, optional, inner.place):
                variable = f"{prefix}{one}"
                if not fits(environment_name, variable):
                    inner.note(one, "is not a variable's name, and is left out")
                elif kind == "configMap" and self._values.is_binary(name, one):
                    continue
                elif kind == "configMap":
                    self.plain[variable] = self._values.text(name, one, optional, inner.place) or ""
                    self.secrets.pop(variable, None)
                else:
                    self.secrets[variable] = self._values.variable(name, one, inner.place)
                    self.plain.pop(variable, None)
            inner.done()
        source.done()

    def _one_of(self, name: str, origin: Fields) -> None:
        for key in ("configMapKeyRef", "secretKeyRef"):
            inner = origin.child(key)
            if inner is None:
                continue
            given = inner.required("name"), inner.required("key"), bool(inner.boolean("optional")), inner.place
            found = self._values.text(*given) if key == "configMapKeyRef" else self._values.secret(*given)
            if found is not None and key == "secretKeyRef":
                found = self._values.variable(given[0], given[1], inner.place)
            if found is not None:
                (self.plain if key == "configMapKeyRef" else self.secrets)[name] = found
            inner.done()
        if (reference := origin.child("fieldRef")) is not None:
            path = reference.required("fieldPath")
            reference.skip("apiVersion")
            if path not in self._facts and not path.startswith(("metadata.labels[", "metadata.annotations[")):
                raise reference.error("fieldPath", f"{path} has no counterpart", hint=_FACTS)
            self.plain[name] = self._facts.get(path, "")
            reference.done()
        for key in origin.unread():
            raise origin.error(key, "no counterpart")


_FACTS = "there are metadata.name, metadata.namespace, metadata.labels['NAME'], metadata.annotations['NAME']"
