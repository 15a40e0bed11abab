"""``kurma build``: runs ``buildah build``, and brings the image into the store."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from kurma_core.errors import HostError, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.schema import describe, writable

if TYPE_CHECKING:
    from kurma_core.hookspecs.command import CommandSession

#: Options of ``buildah build`` that say where its images are, for the command that writes the image to a file.
_STORAGE = ("--root", "--runroot", "--storage-driver", "--storage-opt")


class Build:
    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def application(self, session: CommandSession) -> typer.Typer:
        application = typer.Typer(add_completion=False)

        @application.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
        def build(context: typer.Context) -> None:
            """Build an image from a Dockerfile with buildah, and bring it into the store.

            All arguments are those of buildah build. Prints the image's ID. The names of -t are the image's names
            in the store, too.
            """
            for image in _build(session, context.args):
                session.line(image)

        return application


def _build(session: CommandSession, words: Sequence[str]) -> list[str]:
    """:returns: IDs of the images, one for each name. :raises HostError: buildah is missing, or fails."""
    program = shutil.which("buildah")
    if program is None:
        raise HostError("cannot build an image: buildah is not installed", hint="apt-get install buildah")
    for word in words:
        if "\0" in word or not writable(word):
            raise UsageError(f"{describe(word)} cannot be an argument of a program")
    # As buildah itself: /tmp may be too small for an image. The directory gets a name of its own.
    place = os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108
    if not os.path.isdir(place):
        raise HostError(f"cannot build an image: no directory {place}", hint="TMPDIR names a directory")
    with tempfile.TemporaryDirectory(prefix="kurma-build-", dir=place) as directory:
        asked = values_of(words, "--iidfile")
        identity = asked[-1] if asked else f"{directory}/iid"
        own = () if asked else ("--iidfile", identity)
        _run([program, "build", *own, *words])
        try:
            with open(identity) as file:
                image = file.read().strip()
        except OSError as error:
            raise HostError(f"cannot read the ID of the image that buildah built: {error}") from None
        storage = [f"{option}={value}" for option in _STORAGE for value in values_of(words, option)]
        found = []
        for number, name in enumerate(values_of(words, "--tag", "-t") or [""]):
            archive = f"oci-archive:{directory}/{number}-image.tar" + (f":{full_name(name)}" if name else "")
            _save([program, "push", *storage, "--quiet", image, archive])
            found.append(session.client.image_fetch(archive, built=True).id)
        return list(dict.fromkeys(found))


def _run(command: Sequence[str]) -> None:
    """Runs buildah; its output goes to standard error, since standard output is for IDs.

    :raises HostError: it cannot be run. :raises typer.Exit: it fails; it has said why.
    """
    try:
        process = subprocess.Popen(command, stdout=2)
    except OSError as error:
        raise HostError(f"cannot run buildah: {(error.strerror or str(error)).lower()}") from None
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code:
        raise typer.Exit(code if code > 0 else 128 - code)


def _save(command: Sequence[str]) -> None:
    """Has buildah write an image to a file. :raises HostError: it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise HostError(f"cannot write the built image to a file: {reason}", hint="TMPDIR names another directory")


def values_of(words: Sequence[str], *options: str) -> list[str]:
    """The values of an option with a value, in their order: ``--tag x``, ``--tag=x``, ``-t x``, ``-tx``."""
    found = []
    for place, word in enumerate(words):
        if word == "--":
            break
        for option in options:
            if word == option and place + 1 < len(words):
                found.append(words[place + 1])
            elif option.startswith("--") and word.startswith(f"{option}="):
                found.append(word.partition("=")[2])
            elif not option.startswith("--") and word.startswith(option) and len(word) > 2:
                found.append(word[2:].removeprefix("="))
    return found


def full_name(name: str) -> str:
    """The name as buildah itself completes it: the host ``localhost`` and the tag ``latest``, if it has none."""
    first, slash, _ = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"localhost/{name}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


@hookimpl
def kurma_command() -> Driver:
    return Driver(Build, help="Build an image from a Dockerfile with buildah.")
