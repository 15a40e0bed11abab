"""Checks a stager's image: signature, command, empty directories, and what its annotations declare.

Implements Kurma Stager Specification, Prerequisites and Filesystem Configuration.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kurma_core.api.pods import PodRequest
from kurma_core.errors import ArchiveError, FetchError, ImageError, StagerError, StoreError, TrustError
from kurma_core.linux.beneath import open_in_root
from kurma_core.schema import describe
from kurma_core.stager_check.pods import app
from kurma_core.stager_check.report import Wrong, equal
from kurma_core.staging.aci_stager import USERNS_ANNOTATION
from kurma_core.staging.stager_process import CALL_INS as CALL_INS_ANNOTATION
from kurma_core.staging.stager_process import WAITS

if TYPE_CHECKING:
    from kurma_core.api.images import HostImage
    from kurma_core.appc.image import ImageManifest
    from kurma_core.stager_check.pods import Lab, Probe
    from kurma_core.stager_check.report import Report

#: Annotation of a stager's image: the most apps that a pod may have.
MOST_APPS = "kurma.io/stager/apps"
#: Paths that Kurma mounts over, which would hide the image's files there.
PLACES = ("manifest", "layers", "volumes", "pod", "userns", "dev", "proc", "sys")


def most_apps(manifest: ImageManifest) -> int | None:
    """Returns the most apps that a pod may have; None: any number.

    :raises StagerError: the annotation is not a number.
    """
    text = manifest.annotation(MOST_APPS)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < len(text) < 10 or int(text) == 0:
        raise StagerError(
            f"annotation {MOST_APPS} of the stager's image: not a number from 1 on: {describe(text)}"
        )
    return int(text)


def verified(image: Callable[[], HostImage], report: Report) -> HostImage | None:
    """Returns the image if it may run; else None, and the report has the reason."""
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
        return  # the stager's start checks a program that is looked up in PATH
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


def declared(lab: Lab, manifest: ImageManifest, report: Report) -> None:
    for prefix, annotation, what in (
        ("userns", USERNS_ANNOTATION, _user_namespaces),
        ("waits", WAITS, _waiting),
    ):
        if manifest.annotation(annotation) != "true":
            report.skip(prefix, f"the image has no annotation {annotation}: true")
            continue
        with report.rest(prefix):
            what(lab, report)
    if not lab.takes(2):
        report.skip("changing", lab.few_apps)
        return
    if "app-add" not in (manifest.annotation(CALL_INS_ANNOTATION) or "").split(","):
        report.skip("changing", f"the image has no annotation {CALL_INS_ANNOTATION} with app-add")
        return
    with report.rest("changing"):
        _changing(lab, report)


def _user_namespaces(lab: Lab, report: Report) -> None:
    with lab.pod({"main": app("main", "serve")}, userns="auto") as pod:
        main = pod.probe("main")
        with report.line("userns.apps"):
            _mapped(main)
            for path in ("/marks/base", "/tmp"):  # noqa: S108 - inside the app
                equal(f"owner of {path}", main.must("stat", path)[1:], [0, 0])
            main.must("make", "/marks/base", "written")
        with report.line("userns.run"):
            if not pod.has("run"):
                report.skip("userns.run", "no run call-in")
                return
            call = pod.run("command", "serve")
            command = pod.probe("command")
            _mapped(command)
            equal("its user namespace", _namespace(command), _namespace(main))
            command.tell("exit", 0)
            equal("exit code", call.code(), 0)


def _mapped(probe: Probe) -> None:
    if _namespace(probe) == os.readlink("/proc/self/ns/user"):
        raise Wrong(f"{probe.name} is in the host's user namespace")
    equal("uid inside", probe.facts["uid"], 0)
    (outside,) = {line.split()[1] for line in _status(probe) if line.startswith("Uid:")}
    if outside == "0":
        raise Wrong(f"{probe.name} is root on the host")


def _status(probe: Probe) -> list[str]:
    return Path(f"/proc/{probe.pid}/status").read_text().splitlines()


def _namespace(probe: Probe) -> str:
    return os.readlink(f"/proc/{probe.pid}/ns/user")


def _waiting(lab: Lab, report: Report) -> None:
    lab.driver.early = True
    try:
        with report.line("waits.pod"), lab.pod({"main": app("main", "serve")}) as pod:
            main = pod.probe("main")
            equal("descriptors", main.facts["descriptors"], [0, 1, 2])
            equal("hostname", main.facts["hostname"], pod.hostname)
            main.tell("exit", 4)
            equal("exit code of the pod", pod.ends().exit_code, 4)
    finally:
        lab.driver.early = False


def _changing(lab: Lab, report: Report) -> None:
    with lab.pod({"main": app("main", "serve")}) as pod:
        main, uuid = pod.probe("main"), pod.owned.uuid
        late = PodRequest(lab.template({"late": app("late", "serve")}), stager=lab.driver.name)
        with report.line("changing.add"):
            lab.manager.apps.add(uuid, late, start=True)
            first = pod.probe("late")
            equal("descriptors", first.facts["descriptors"], [0, 1, 2])
            equal("/marks/both", first.must("file", "/marks/both"), "top")
            first.must("make", "/marks/both", "written")
        with report.line("changing.stop"):
            lab.manager.apps.stop(uuid, "late", timeout=1.0)
            if not pod.status_when("late").exited or pod.status()["main"].exited:
                raise Wrong("status says otherwise")
            equal("main", main.must("file", "/marks/both"), "top")
        with report.line("changing.start"):
            lab.manager.apps.start(uuid, "late")
            equal("/marks/both", pod.probe("late").must("file", "/marks/both"), "top")
        with report.line("changing.rm"):
            lab.manager.apps.stop(uuid, "late", timeout=1.0)
            lab.manager.apps.remove(uuid, "late")
            equal("apps", sorted(pod.status()), ["main"])
            equal("main", main.must("file", "/marks/both"), "top")
