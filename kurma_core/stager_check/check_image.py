"""Checks a stager's image: signature, command, empty directories, and what its annotations declare.

Implements Kurma Stager Specification, Prerequisites and Filesystem Configuration.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kurma_core.api.pods import PodRequest
from kurma_core.errors import ArchiveError, FetchError, ImageError, StagerError, StoreError, TrustError
from kurma_core.linux.beneath import open_in_root
from kurma_core.linux.cgroups import CgroupTree, Layout
from kurma_core.linux.libc import syscall
from kurma_core.models.isolator import RLIMITS, CgroupSetting, IoPriority, MemoryPolicy, Scheduling
from kurma_core.schema import describe
from kurma_core.stager_check.check_apps import must_fail
from kurma_core.stager_check.pods import app
from kurma_core.stager_check.report import NotDone, Wrong, equal
from kurma_core.staging.aci_stager import ISOLATORS_ANNOTATION, USERNS_ANNOTATION
from kurma_core.staging.stager_process import CALL_INS as CALL_INS_ANNOTATION
from kurma_core.staging.stager_process import FORKS, WAITS

if TYPE_CHECKING:
    from kurma_core.api.images import HostImage
    from kurma_core.appc.image import ImageManifest
    from kurma_core.stager_check.pods import Lab, Pod, Probe
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
                raise Wrong(f"/{name} is there, and is not an empty directory")
        finally:
            os.close(fd)


def declared(lab: Lab, manifest: ImageManifest, report: Report) -> None:
    for prefix, annotation, what in (
        ("userns", USERNS_ANNOTATION, _user_namespaces),
        ("waits", WAITS, _waiting),
        ("forks", FORKS, _forked),
        ("plan", ISOLATORS_ANNOTATION, _plans),
    ):
        if manifest.annotation(annotation) != "true":
            report.skip(prefix, f"the image has no annotation {annotation}: true")
            continue
        with report.rest(prefix):
            what(lab, report)
        report.skip(prefix, "no such pod runs under this stager")
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
    if _words_of(probe.pid, "status", "Uid:")[1] == "0":
        raise Wrong(f"{probe.name} is root on the host")


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


def _forked(lab: Lab, report: Report) -> None:
    lab.driver.early = True  # a fork server comes with prestarted stagers
    try:
        with report.line("forks.pod"), lab.pod({"main": app("main", "serve")}) as pod:
            main = pod.probe("main")
            equal("descriptors", main.facts["descriptors"], [0, 1, 2])
            if not lab.driver.forks():
                raise Wrong("its fork server did not answer with a stager")
            main.tell("exit", 4)
            equal("exit code of the pod", pod.ends().exit_code, 4)
    finally:
        lab.driver.early = False


#: Fields of a plan that a process shows; each has a line.
_PLAN: dict[str, Any] = {
    "umask": 0o027,
    "rlimits": {"nofile": (1000, 2000), "locks": (11, 12)},
    "scheduling": Scheduling("batch", nice=7),
    "io_priority": IoPriority("best-effort", 6),
}
#: The value of each, in the form of :data:`_SHOWN`.
_WANTED: dict[str, object] = {
    "plan.umask": "0027",
    "plan.limits": {"nofile": (1000, 2000), "locks": (11, 12)},
    "plan.scheduling": (os.SCHED_BATCH, 7),
    "plan.io-priority": 2 << 13 | 6,  # IOPRIO_CLASS_BE, as ioprio_set(2) encodes it
    "plan.memory-policy": "bind:0",
}
_IOPRIO_WHO_PROCESS = 1
#: The kernel's facts about a process, by PID.
_SHOWN: dict[str, Callable[[int], object]] = {
    "plan.umask": lambda pid: _words_of(pid, "status", "Umask:")[1],
    "plan.limits": lambda pid: {name: resource.prlimit(pid, RLIMITS.index(name)) for name in _PLAN["rlimits"]},
    "plan.scheduling": lambda pid: (os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)),
    "plan.io-priority": lambda pid: syscall("ioprio_get", _IOPRIO_WHO_PROCESS, pid),
    "plan.memory-policy": lambda pid: _words_of(pid, "numa_maps", "")[1],
}


def _words_of(pid: int, file: str, start: str) -> list[str]:
    """Returns the words of the first line of ``/proc/PID/FILE`` that begins so."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(line.split() for line in lines if line.startswith(start))


def _plans(lab: Lab, report: Report) -> None:
    numa = os.path.exists("/proc/self/numa_maps")
    settings = _cgroup_settings()
    memory = {"memory_policy": MemoryPolicy("bind", "0")} if numa else {}
    names = ("main", "other") if lab.takes(2) else ("main",)
    try:
        lab.driver.plans = {"main": {**_PLAN, **memory, "cgroup": tuple(settings)}}
        with lab.pod({name: app(name, "serve") for name in names}) as pod:
            main = pod.probe("main")
            for name in _SHOWN:
                with report.line(name):
                    if name == "plan.memory-policy" and not numa:
                        raise NotDone("this kernel has no memory policies")
                    equal(name.partition(".")[2], _SHOWN[name](main.pid), _WANTED[name])
                    if name == "plan.umask" and len(names) > 1:
                        equal("umask of an app without one", _SHOWN[name](pod.probe("other").pid), "0022")
            with report.line("plan.cgroup"):
                if not settings:
                    raise NotDone("this host has no cgroup with such a file")
                for setting in settings:
                    _written_to_cgroup(pod, main.pid, setting)
            with report.line("plan.run"):
                if not pod.has("run"):
                    raise NotDone("no run call-in")
                pod.run("command", "serve")
                command = pod.probe("command")
                for name in _SHOWN:
                    if numa or name != "plan.memory-policy":
                        equal(name.partition(".")[2], _SHOWN[name](command.pid), _WANTED[name])
        with report.line("plan.refused"):
            lab.driver.plans = {"main": {"rlimits": {"nofile": (9, 8)}}}
            must_fail(lab, app("main", "serve"))
        with report.line("plan.version"):
            lab.driver.plans, lab.driver.plan_version = {}, 1_000_000
            must_fail(lab, app("main", "serve"))
    finally:
        lab.driver.plans, lab.driver.plan_version = {}, 0


def _cgroup_settings() -> list[CgroupSetting]:
    """Settings of files that this host's cgroups have and no isolator of Kurma's writes."""
    layout, found = Layout.of_host(), []
    memory = layout.of("memory")
    if memory is not None:
        file, value = ("memory.swappiness", "33") if memory.version == 1 else ("memory.oom.group", "1")
        found.append(CgroupSetting("memory", file, value))
    if layout.of("cgroup") is not None:
        found.append(CgroupSetting("cgroup", "cgroup.max.descendants", "77"))
    return found


def _written_to_cgroup(pod: Pod, pid: int, setting: CgroupSetting) -> None:
    """Checks the groups of the process: its own, and those above it, without the pod's."""
    top = os.path.dirname(CgroupTree(pod.cgroup).file(setting.controller, setting.file))
    groups = [at for at, _, _ in os.walk(top) if str(pid) in Path(at, "cgroup.procs").read_text().split()]
    if not groups:
        raise Wrong(f"the app is in no cgroup of {setting.controller} below the pod's")
    values: list[str] = []
    group = groups[0]
    while group != top or not values:
        values.append(Path(group, setting.file).read_text().strip())
        group = os.path.dirname(group)
    if setting.value not in values:
        raise Wrong(f"{setting.file} of the app: {values[0]}, and not {setting.value}")


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
