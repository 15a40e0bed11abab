"""Lines about the image itself (Kurma Stager Specification, Prerequisites and Filesystem Configuration; G1)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from kurma_core.errors import ArchiveError, FetchError, ImageError, StoreError, TrustError
from kurma_core.linux.beneath import open_in_root
from kurma_core.stager_check.lines import Wrong

if TYPE_CHECKING:
    from kurma_core.api.images import HostImage
    from kurma_core.stager_check.lines import Report

#: What Kurma puts there would hide it.
PLACES = ("manifest", "layers", "volumes", "pod", "userns", "dev", "proc", "sys")


def verified(image: Callable[[], HostImage], report: Report) -> HostImage | None:
    """The image, if it may run; else None, and the report says why."""
    try:
        found = image()
    except TrustError as error:
        report.say("image.signature", "fail", error.message + (f" ({error.hint})" if error.hint else ""))
        return None
    except (FetchError, StoreError, ArchiveError):
        raise
    except ImageError as error:
        report.say("image.signature", "ok")
        report.say("image.dependencies", "fail", error.message)
        return None
    report.say("image.signature", "ok")
    report.say("image.dependencies", "ok")
    return found


def image_itself(image: HostImage, report: Report) -> None:
    root = os.open(image.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with report.line("image.command"):
            _command(image, root)
        with report.line("image.places"):
            _places(root)
    finally:
        os.close(root)


def _command(image: HostImage, root: int) -> None:
    app = image.manifest.app
    if app is None or not app.exec:
        raise Wrong("the manifest has no app.exec")
    program = app.exec[0]
    if "/" not in program:
        return  # looked for in its PATH, which the start shows
    try:
        found = open_in_root(root, program, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise Wrong(f"{program}: {error.strerror}") from None
    try:
        mode = os.fstat(found).st_mode
    finally:
        os.close(found)
    if not stat.S_ISREG(mode) or not mode & 0o111:
        raise Wrong(f"{program} cannot be executed")


def _places(root: int) -> None:
    for name in PLACES:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Wrong(f"/{name}: {error.strerror}") from None
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode) or os.listdir(fd):
                raise Wrong(f"/{name} is there, and is no empty directory")
        finally:
            os.close(fd)
