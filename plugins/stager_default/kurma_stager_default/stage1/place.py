"""The pod's directory, the record of a running pod in it, and the error handling of entrypoints."""

from __future__ import annotations

import json
import os

from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout
from kurma_core.linux.process import ProcessIdentity
from kurma_stager_default.inside.errors import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Exit status of an entrypoint that could not do its work.
FAILED = 125
#: Exit status of an entrypoint that the user has interrupted: 128 + SIGINT.
_INTERRUPTED = 130
ROOTFS = "stage1/rootfs"
#: The record's path, below stage1's root, which no app sees.
RECORD = "stage1/running.json"
APPS = "opt/stage2"


class Stage1Error(Exception):
    """A failure of an entrypoint. The text is one line: the step, the object and the reason."""


class Place:
    """The pod's directory, which is the current directory.

    :raises Stage1Error: it is not a pod's directory.
    """

    def __init__(self) -> None:
        self.path = os.getcwd()
        self.rootfs = f"{self.path}/{ROOTFS}"
        if not os.path.isdir(self.rootfs):
            raise Stage1Error(f"{self.path}: not a pod's directory: it has no {ROOTFS}")

    @property
    def uuid(self) -> str:
        return os.path.basename(self.path)

    def json(self, path: str) -> dict[str, Any]:
        """Reads a JSON document of the pod. :raises Stage1Error: it cannot be read."""
        try:
            with open(f"{self.path}/{path}", "rb") as file:
                value = json.load(file)
        except (OSError, ValueError) as error:
            raise Stage1Error(f"{self.path}/{path}: {why(error)}") from None
        if not isinstance(value, dict):
            raise Stage1Error(f"{self.path}/{path}: not a JSON object")
        return value


class Record:
    """The record of a running pod: its supervisor's process and its cgroups.

    :param cgroups: the pod's cgroup on each hierarchy.
    """

    def __init__(self, process: ProcessIdentity, cgroups: CgroupTree) -> None:
        self.process = process
        self.cgroups = cgroups

    def write(self, place: Place) -> None:
        hierarchies = [
            [one.version, list(one.controllers), one.directory, one.place]
            for one in self.cgroups.layout.hierarchies
        ]
        value = {"process": self.process.to_json(), "cgroup": self.cgroups.name, "hierarchies": hierarchies}
        path = f"{place.rootfs}/{RECORD}"
        with open(f"{path}.new", "w") as file:
            json.dump(value, file)
        os.rename(f"{path}.new", path)

    @classmethod
    def read(cls, place: Place) -> Record | None:
        """Reads the record; None: the pod was never run. :raises Stage1Error: the record is damaged."""
        path = f"{ROOTFS}/{RECORD}"
        if not os.path.exists(f"{place.path}/{path}"):
            return None
        value = place.json(path)
        try:
            hierarchies = [
                Hierarchy(version, tuple(controllers), directory, where)
                for version, controllers, directory, where in value["hierarchies"]
            ]
            tree = CgroupTree(value["cgroup"], Layout(hierarchies))
            return cls(ProcessIdentity.from_json(value["process"]), tree)
        except (KeyError, TypeError, ValueError, OSError):
            raise Stage1Error(f"{place.path}/{path}: damaged") from None


def entrypoint(work: Callable[[], int]) -> Callable[[], int]:
    """Decorates an entrypoint's ``main``: errors are printed as one line, and give an exit status."""

    def main() -> int:
        try:
            return work()
        except Stage1Error as error:
            say(str(error))
        except OSError as error:
            say(told(error))
        except KeyboardInterrupt:
            return _INTERRUPTED  # its work has been undone, or gc will undo it
        return FAILED

    return main


def why(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def say(text: str) -> None:
    complain(f"stage1: {text}")


def told(error: Exception) -> str:
    """The error as one line, for the user."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {why(error)}"
    return why(error)
