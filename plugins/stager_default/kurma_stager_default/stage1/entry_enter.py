"""The ``enter`` entrypoint: ``--pid=N --appname=APP -- CMD ARG…``, in the pod's directory. It runs a command in an
app.

It executes the stager's call-in ``run``, which gives the command the app's rights and no more.
"""

from __future__ import annotations

import os
import sys

from kurma_core.formats import small_json
from kurma_core.linux import namespaces, process
from kurma_stager_default.stage1.place import Place, Record, Stage1Error, entrypoint

#: The descriptor from which the call-in reads the command.
_DOCUMENT = 3
_PROGRAM = "/opt/stager/run"


@entrypoint
def main() -> int:
    process.close_others({0, 1, 2})  # other descriptors of the caller could lead out of the pod, to the host
    pid, app, command = _arguments(sys.argv[1:])
    place = Place()
    record = Record.read(place)
    fd = None if record is None else record.process.open()
    if record is None or fd is None:
        raise Stage1Error("the pod does not run")
    first = _number(f"{place.path}/pid")
    if pid not in ("", str(first)):
        raise Stage1Error(f"--pid={pid}: the pod's first process is {first}")
    document = _document(command)
    namespaces.setns(fd, namespaces.CLONE_NEWNS | namespaces.CLONE_NEWNET)
    os.chdir("/")
    os.dup2(document, _DOCUMENT)
    # If the caller has closed its input, the two are one, and dup2 leaves it to be closed by execve.
    os.set_inheritable(_DOCUMENT, True)
    kept = {key: os.environ[key] for key in ("TERM",) if key in os.environ}
    os.execve(_PROGRAM, [_PROGRAM, app], kept)  # noqa: S606


def _arguments(words: list[str]) -> tuple[str, str, list[str]]:
    """The PID, the app and the command. :raises Stage1Error: the arguments are wrong."""
    given = {"--pid": "", "--appname": ""}
    command: list[str] = []
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if word == "--":
            command = words[number + 1 :]
            break
        if name not in given:
            raise Stage1Error(f"enter: unknown argument {word!r}")
        given[name] = value
    if not command or not given["--appname"]:
        raise Stage1Error("usage: enter --pid=N --appname=APP -- CMD ARG…")
    return given["--pid"], given["--appname"], command


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _document(command: list[str]) -> int:
    """The command's document for the call-in, as a descriptor. It asks for a terminal if the caller has one."""
    value = {"exec": command, "tty": os.isatty(0) and os.isatty(1)}
    fd = os.memfd_create("command")
    os.write(fd, small_json.encode_valid(value).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
