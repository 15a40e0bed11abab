"""What was added, on disk: DEL needs the result of ADD, and may come from another process, days later."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kurma_core.errors import FormatVersionError, NetworkError
from kurma_core.hookspecs import AttachmentContext
from kurma_core.linux.files import replace_file
from kurma_core.value import frozen

Json = Any
VERSION = 1


@frozen
class Record:
    """One attachment, from before its ADD until after its DEL.

    :param result: of the last plugin of the chain that succeeded; None: none has yet.
    :param leaving: a DEL has begun, and may have got half-way.
    :param left: places in the chain of the plugins whose DEL has succeeded. They are not asked again: they act on
        addresses too, and an address that was given back may be another pod's by then.
    :param refused: in what words the chain's first plugin has refused to ADD; None: it has not.
    """

    network: str
    pod: str
    interface: str
    result: Json = None
    leaving: bool = False
    left: tuple[int, ...] = ()
    refused: str | None = None


class Records:
    """The records of one driver. ``POD:INTERFACE:NETWORK.json`` under ``results/``, root's alone."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._directory = os.path.join(state_dir, "results")

    def write(self, record: Record) -> None:
        """:raises NetworkError: the disk is full, or the like."""
        value = {
            "version": VERSION,
            "network": record.network,
            "pod": record.pod,
            "interface": record.interface,
            "leaving": record.leaving,
            "left": list(record.left),
            "refused": record.refused,
            "result": record.result,
        }
        path = self._path(record.network, record.pod, record.interface)
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            replace_file(path, json.dumps(value).encode(), 0o600)
        except OSError as error:
            raise NetworkError(
                f'network "{record.network}": cannot write {path}: {error.strerror}',
                network=record.network,
                path=path,
                errno=error.errno,
            ) from error

    def read(self, context: AttachmentContext) -> Record | None:
        """None: nothing was ever added, or all of it was deleted; or the record is torn, which must not keep a
        pod from being taken down.

        :raises FormatVersionError: a newer version of this plugin wrote it.
        """
        path = self._path(context.attachment.network, context.pod, context.interface)
        try:
            with open(path, encoding="utf-8") as file:
                value = json.load(file)
            if value["version"] > VERSION:
                raise FormatVersionError(f"{path} has version {value['version']}, this plugin knows {VERSION}")
            return Record(
                network=value["network"],
                pod=value["pod"],
                interface=value["interface"],
                result=value["result"],
                leaving=value["leaving"],
                left=tuple(value["left"]),
                refused=value.get("refused"),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def exists(self, context: AttachmentContext) -> bool:
        """Whether an ADD has begun that no DEL has undone, torn or newer records included."""
        return os.path.lexists(self._path(context.attachment.network, context.pod, context.interface))

    def remove(self, context: AttachmentContext) -> None:
        """Nothing to remove is success."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(context.attachment.network, context.pod, context.interface))

    def pods(self, network: str) -> tuple[str, ...]:
        """UUIDs of the pods that are joined to a network, or half so."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return ()
        parts = [name.removesuffix(".json").split(":", 1) for name in names if name.endswith(".json")]
        return tuple(sorted(pod for pod, rest in parts if rest.endswith(":" + network)))

    @contextmanager
    def lock(self, *, alone: bool = False) -> Iterator[None]:
        """Held while plugins run: many at once may add and delete, one alone may take shared things away."""
        try:
            os.makedirs(self._state_dir, 0o700, exist_ok=True)
            path = os.path.join(self._state_dir, "lock")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise NetworkError(
                f"cannot write to {self._state_dir}: {error.strerror}", path=self._state_dir, errno=error.errno
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def _path(self, network: str, pod: str, interface: str) -> str:
        return os.path.join(self._directory, f"{pod}:{interface}:{network}.json")
