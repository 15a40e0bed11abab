"""The state directory of one network whose plugin is an image: records of its setup and its pods, and its
locks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kurma_core.errors import FormatVersionError, NetworkError
from kurma_core.json_text import loads
from kurma_core.linux.beneath import remove_tree
from kurma_core.linux.files import lock_file, replace_file
from kurma_core.models.network import Attachment
from kurma_core.schema import COUNT, fit
from kurma_core.value import frozen

Json = Any
VERSION = 1
_SETUP = "setup.json"
_JOINED = {
    "version": COUNT,
    "pod": str,
    "podName": str,
    "namespace": str,
    "image": str,
    "attachment": Attachment,
    "added": bool,
}
#: The part of ``setup.json`` that is checked.
_IMAGE = {"image": str}


@frozen
class Joined:
    """The record of one attachment, from before its ``add`` until after its ``del``.

    :param image: the image of the root in which ``add`` ran. :param attachment: with its configuration at that
        time.
    :param added: ``add`` has succeeded, and no ``del`` has begun.
    """

    pod: str
    pod_name: str
    namespace: str
    image: str
    attachment: Attachment
    added: bool = False


class _Held(Exception):
    """Another process or thread holds the lock."""


class Place:
    """``networks/NAME/`` in the plugin's state directory; only root may enter it::

    lock                      shared by calls, exclusive while the network is set up or removed
    setup.json                record of the setup that has succeeded
    roots/IMAGE/              roots.py
    joined/POD:INTERFACE.json
    joined/POD:INTERFACE.lock one call at a time for each
    """

    def __init__(self, state_dir: str, network: str) -> None:
        self.network = network
        self._parent = os.path.join(state_dir, "networks")
        self.path = os.path.join(self._parent, network)
        self.roots = os.path.join(self.path, "roots")
        self._joined = os.path.join(self.path, "joined")

    @staticmethod
    def all(state_dir: str) -> tuple[Place, ...]:
        """Returns the directories of all networks."""
        return tuple(Place(state_dir, name) for name in _names(os.path.join(state_dir, "networks")))

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    # -- locks --

    @contextmanager
    def lock(self, *, alone: bool = False) -> Iterator[int]:
        """Locks the network. :param alone: exclusively.

        :returns: the descriptor of the lock; a process that inherits it holds the lock, too.
        :raises NetworkError: the state directory cannot be written to.
        """
        with self._locked(os.path.join(self.path, "lock"), alone=alone) as fd:
            yield fd

    @contextmanager
    def lock_if_free(self) -> Iterator[bool]:
        """Locks the network exclusively; yields False if another process or thread holds the lock."""
        try:
            with self._locked(os.path.join(self.path, "lock"), alone=True, wait=False):
                yield True
        except _Held:
            yield False

    @contextmanager
    def lock_joined(self, pod: str, interface: str) -> Iterator[int]:
        """Locks one attachment exclusively. The lock's file is removed with the attachment's record."""
        with self._locked(self._file(pod, interface, "lock"), alone=True) as fd:
            yield fd

    @contextmanager
    def _locked(self, path: str, *, alone: bool, wait: bool = True) -> Iterator[int]:
        with self._writing():
            try:
                fd = lock_file(path, alone=alone, wait=wait)
            except BlockingIOError:
                raise _Held from None
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise NetworkError(
                f'network "{self.network}": cannot write to {self.path}: {error.strerror}',
                network=self.network,
                path=self.path,
                errno=error.errno,
            ) from error

    # -- setup --

    def setup(self) -> Mapping[str, Json] | None:
        """Reads the record that :meth:`write_setup` has written; None: it is missing or damaged."""
        try:
            with open(os.path.join(self.path, _SETUP), encoding="utf-8") as file:
                value: Mapping[str, Json] = loads(file.read(), own=True)
            fit(value, _IMAGE, "the record")
        except (FileNotFoundError, ValueError):
            return None
        return value

    def write_setup(self, value: Mapping[str, Json]) -> None:
        self._write(os.path.join(self.path, _SETUP), value)

    def forget_setup(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, _SETUP))

    # -- joined pods --

    def write(self, joined: Joined) -> None:
        """Writes the record of an attachment. :raises NetworkError: it cannot be written."""
        value = {
            "version": VERSION,
            "pod": joined.pod,
            "podName": joined.pod_name,
            "namespace": joined.namespace,
            "image": joined.image,
            "added": joined.added,
            "attachment": joined.attachment.to_json(),
        }
        self._write(self._file(joined.pod, joined.attachment.interface, "json"), value)

    def read(self, pod: str, interface: str) -> Joined | None:
        """Reads the record of an attachment; None: it is missing or damaged (:meth:`knows` tells which).

        :raises FormatVersionError: a newer version of this plugin wrote it.
        """
        path = self._file(pod, interface, "json")
        try:
            with open(path, encoding="utf-8") as file:
                value = loads(file.read(), own=True)
            fit(value, _JOINED, "the record")
            if value["version"] > VERSION:
                raise FormatVersionError(f"{path} has version {value['version']}, this plugin knows {VERSION}")
            return Joined(
                pod=value["pod"],
                pod_name=value["podName"],
                namespace=value["namespace"],
                image=value["image"],
                attachment=Attachment.from_json(value["attachment"]),
                added=value["added"],
            )
        except (FileNotFoundError, ValueError):
            return None

    def knows(self, pod: str, interface: str) -> bool:
        """Whether there is a record, damaged or not."""
        return os.path.lexists(self._file(pod, interface, "json"))

    def forget(self, pod: str, interface: str) -> None:
        """Removes the record, and then its lock's file. The caller holds the lock. Repeatable."""
        for kind in ("json", "lock"):
            with suppress(FileNotFoundError):
                os.unlink(self._file(pod, interface, kind))

    def joined(self) -> tuple[tuple[str, str], ...]:
        """Returns pod and interface of every record."""
        names = [name.removesuffix(".json") for name in _names(self._joined) if name.endswith(".json")]
        return tuple((pod, interface) for pod, _, interface in [name.partition(":") for name in names])

    # -- all of it --

    def remove(self) -> None:
        """Removes the directory. The caller holds the lock exclusively. :raises NetworkError: it cannot be
        removed."""
        with self._writing():
            parent = os.open(self._parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                remove_tree(parent, self.network)
            finally:
                os.close(parent)

    def _write(self, path: str, value: Mapping[str, Json]) -> None:
        with self._writing():
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            replace_file(path, json.dumps(value).encode())

    def _file(self, pod: str, interface: str, kind: str) -> str:
        return os.path.join(self._joined, f"{pod}:{interface}.{kind}")


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
