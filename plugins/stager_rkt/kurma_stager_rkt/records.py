"""The driver's record of a pod under stage1 (``stage1.json``), and its apps' status from stage1's files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

from kurma_core.json_text import loads
from kurma_core.linux.beneath import open_regular
from kurma_core.linux.files import replace_file
from kurma_core.models.pod import AppStatus
from kurma_core.schema import COUNT, fit
from kurma_core.value import frozen
from kurma_stager_rkt.settings import PATIENCE
from kurma_stager_rkt.stage1_image import Stage1

#: The path of a :class:`Note` in Kurma's directory of a pod, and in rkt's.
NOTE, COPY = "stager/stage1.json", "kurma.json"
#: Most bytes of a status file.
_LIMIT = 32
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SHAPE = {
    "cgroup": str,
    "image": str,
    "path": str,
    "name": str,
    "interface": COUNT,
    "entrypoints": {str: str},
    "debug": bool,
    "localConfig": str,
    "patience": COUNT,
    "mutable": bool,
    "lifted": [str],
    "privateUsers": ([COUNT, COUNT], None),
}


@frozen
class Note:
    """The record ``stager/stage1.json`` in Kurma's directory of the pod, for later calls of entrypoints. rkt's
    directory of the pod has a copy, :data:`COPY`, in case Kurma's is removed.

    :param cgroup: the pod's. :param image: stage1's ID; ``path`` its tree in the store.
    :param mutable: apps can be added and removed. :param lifted: restrictions that stage1 does not put on apps.
    :param private_users: first host id of the pod's user namespace, and the number of ids; None: it has none.
    :param local_config: relative to the pod's directory, which moves; or the administrator's, absolute.
    :param patience: seconds that its ``stop``, ``gc`` and ``app`` entrypoints may take.
    """

    cgroup: str
    image: str
    path: str
    stage1: Stage1
    debug: bool = False
    local_config: str = ""
    patience: int = PATIENCE
    mutable: bool = False
    lifted: tuple[str, ...] = ()
    private_users: tuple[int, int] | None = None

    def write(self, file: str) -> None:
        """:param file: its path."""
        value = {
            "version": 1,
            "cgroup": self.cgroup,
            "image": self.image,
            "path": self.path,
            "name": self.stage1.name,
            "interface": self.stage1.version,
            "entrypoints": dict(self.stage1.entrypoints),
            "debug": self.debug,
            "localConfig": self.local_config,
            "patience": self.patience,
            "mutable": self.mutable,
            "lifted": list(self.lifted),
            "privateUsers": self.private_users,
        }
        replace_file(file, json.dumps(value).encode())

    @classmethod
    def read(cls, directory: str) -> Note | None:
        """:param directory: Kurma's. :returns: None: the pod was never prepared, or the record is damaged."""
        return cls.of_file(f"{directory}/{NOTE}")

    @classmethod
    def of_file(cls, file: str) -> Note | None:
        """As :meth:`read`."""
        try:
            with open(file, "rb") as stream:
                value = loads(stream.read(), own=True)
            fit(value, _SHAPE, "the record")
        except (OSError, ValueError):
            return None
        users = value["privateUsers"]
        return cls(
            cgroup=value["cgroup"],
            image=value["image"],
            path=value["path"],
            stage1=Stage1(value["name"], value["interface"], value["entrypoints"]),
            debug=value["debug"],
            local_config=value["localConfig"],
            patience=value["patience"],
            mutable=value["mutable"],
            lifted=tuple(value["lifted"]),
            private_users=None if users is None else (users[0], users[1]),
        )


def app_statuses(place: str, *, alive: bool, mutable: bool = False) -> dict[str, AppStatus]:
    """The status of each app of the pod. An app has ended if ``rkt/status`` has its exit code, which may also be
    in the upper directory of stage1's overlay.

    :param alive: stage1 runs, and so do apps without an exit code.
    :param mutable: the apps are started one by one.
    """
    try:
        names = sorted(os.listdir(f"{place}/appsinfo"))
    except OSError:
        return {}
    first = _stamp(f"{place}/pid") or _stamp(f"{place}/ppid")
    found = {}
    for name in names:
        started = _started(place, name) if mutable else first
        code, when = _exit_code(place, name)
        if code is not None:
            found[name] = AppStatus(
                name,
                exited=True,
                exit_code=code,
                reason="exited",
                started_at=started,
                finished_at=when,
                instance=1,
            )
        elif started is not None and alive:
            found[name] = AppStatus(name, started_at=started, instance=1)
        elif started is not None and not mutable and len(names) == 1:
            # The app has ended with its pod: stage1-fly executes the app itself, and writes no exit code.
            found[name] = AppStatus(name, exited=True, reason="exited", started_at=started, instance=1)
        else:
            found[name] = AppStatus(name)
    return found


def _exit_code(place: str, app: str) -> tuple[int | None, str | None]:
    """An app's exit code and the time of its end. The files are untrusted: some stage1s share their root with
    apps."""
    for fd in _status_files(place, app):
        try:
            text, when = os.read(fd, _LIMIT).strip(), os.fstat(fd).st_mtime
        finally:
            os.close(fd)
        if text.isdigit() and int(text) <= 255:
            return int(text), _time(when)
    return None, None


def _started(place: str, app: str) -> str | None:
    """When the app was last started."""
    for fd in _status_files(place, f"{app}-started"):
        try:
            return _time(os.fstat(fd).st_mtime)
        finally:
            os.close(fd)
    return None


def _status_files(place: str, name: str) -> Iterator[int]:
    """Opens the file of that name in ``rkt/status``, in each root that has it. The caller closes the
    descriptors."""
    for root in _roots(place):
        try:
            top = os.open(root, _DIRECTORY)
        except OSError:
            continue
        try:
            fd = open_regular(top, f"rkt/status/{name}")
        except OSError:
            continue
        finally:
            os.close(top)
        yield fd


def _roots(place: str) -> Iterator[str]:
    """stage1's root, mounted or not, and the upper directory of its overlay. Other overlays are the apps'."""
    yield f"{place}/stage1/rootfs"
    try:
        with open(f"{place}/stage1TreeStoreID", encoding="ascii") as stream:
            tree = stream.read()
    except OSError:
        return
    yield f"{place}/overlay/{tree}/upper"


def _stamp(path: str) -> str | None:
    try:
        return _time(os.lstat(path).st_mtime)
    except OSError:
        return None


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
