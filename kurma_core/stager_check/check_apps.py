"""Checks apps under a stager: arguments, user, layers, volumes, handlers, and the end of their pods."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import KurmaError, StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import state
from kurma_core.stager_check.pods import app
from kurma_core.stager_check.probe_image import (
    GROUP,
    GROUP_ID,
    OWNED,
    OWNER_GROUP_ID,
    OWNER_ID,
    PROGRAM,
    USER,
    USER_ID,
)
from kurma_core.stager_check.report import NotDone, Wrong, equal, shortened

if TYPE_CHECKING:
    from kurma_core.models.pod import PodRecord
    from kurma_core.stager_check.pods import Lab, Pod, Probe
    from kurma_core.stager_check.report import Report

ODD_WORDS = ("two words", "", "it's", 'a "quote"', "a\nline", "$HOME `id` \\n *", "ü–𐍈")
ODD_VALUE = "two\nlines, 'quoted' \"twice\" $HOME \\n = ü"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@contextlib.contextmanager
def refusable(lab: Lab, apps: dict[str, Any], **pod: Any) -> Iterator[Pod]:
    """Runs a pod that the stager may refuse: a refusal with a message means "not supported", and is no fault.

    :raises NotDone: the stager refused, with its message.
    """
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(lab.pod(apps, **pod))
        except StagerError as error:
            if error.data.get("status") is None or not error.data.get("said"):
                raise
            raise NotDone(f"refused: {error.data['said']}") from None
        yield made


def basics(pods: Mapping[str, Pod], main: Probe, other: Probe, report: Report) -> None:
    """Checks two apps: ``main`` runs as root, ``other`` as 1234:2345, in ``/work``, with odd arguments.

    :param pods: the pod of each app.
    """
    pod = pods["main"]
    with report.line("start.descriptors"):
        for probe in (main, other):
            equal(f"open in {probe.name}", probe.facts["descriptors"], [0, 1, 2])
    with report.line("start.standard-input"):
        equal("read", main.ask("read", 0), "")
    with report.line("app.arguments"):
        equal("arguments", other.facts["arguments"], ["serve", *ODD_WORDS])
    with report.line("app.environment"):
        environment = other.facts["environment"]
        equal("ODD", environment.get("ODD"), ODD_VALUE)
        equal("EMPTY", environment.get("EMPTY"), "")
        equal("AC_APP_NAME", environment.get("AC_APP_NAME"), "other")
        if "/bin" not in environment.get("PATH", ""):
            raise Wrong(f"PATH is {shortened(environment.get('PATH'))}")
    with report.line("app.user"):
        equal("main's", (main.facts["uid"], main.facts["gid"]), (0, 0))
        equal("user and group", (other.facts["uid"], other.facts["gid"]), (USER_ID, GROUP_ID))
        if set(other.facts["groups"]) - {GROUP_ID}:
            raise Wrong(f"further groups that nobody asked for: {other.facts['groups']}")
    with report.line("app.working-directory"):
        equal("main's", main.facts["cwd"], "/")
        equal("other's", other.facts["cwd"], "/work")
    with report.line("app.hostname"):
        if main.facts["hostname"] == os.uname().nodename != pod.hostname:
            raise NotDone("apps see the host's")
        equal("hostname", main.facts["hostname"], pod.hostname)
    with report.line("app.network"):
        for probe in (main, other):
            equal(
                f"the network namespace of {probe.name}",
                os.stat(f"/proc/{probe.pid}/ns/net").st_ino,
                os.stat(f"/proc/{pods[probe.name].owned.stager.pid}/ns/net").st_ino,
            )
    with report.line("app.cgroup"):
        for probe in (main, other):
            if probe.pid not in CgroupTree(pods[probe.name].cgroup).pids():
                raise Wrong(f"{probe.name} (process {probe.pid}) is outside of it")
    with report.line("app.walls"):
        _walls(main)
    with report.line("app.devices"):
        _devices(main)


def _walls(main: Probe) -> None:
    for place in ("/manifest", "/layers"):
        if isinstance(main.ask("stat", place), list):
            raise Wrong(f"an app sees {place}")
    for pid, names in main.must("roots").items():
        if "manifest" in names and "layers" in names:
            raise Wrong(f"/proc/{pid}/root leads to the stager's root")


def _devices(main: Probe) -> None:
    for name in _DEVICES:
        mode = main.must("stat", f"/dev/{name}")[0]
        if not stat.S_ISCHR(mode):
            raise Wrong(f"/dev/{name} is not a device")
    for name in main.must("list", "/dev"):
        found = main.ask("stat", f"/dev/{name}")
        if isinstance(found, list) and stat.S_ISBLK(found[0]):
            raise Wrong(f"an app has the disk /dev/{name}")


def stacked(lab: Lab, main: Probe, report: Report) -> None:
    """Checks the layers of the same pod."""
    top, base = (layer.path for layer in lab.image.layers)
    with report.line("layers.order"):
        for name, wanted in (("base", "base"), ("top", "top"), ("both", "top")):
            equal(f"/marks/{name}", main.must("file", f"/marks/{name}"), wanted)
    with report.line("layers.untouched"):
        main.must("make", "/marks/both", "written")
        main.must("make", "/marks/new", "written")
        equal("what was written", main.must("file", "/marks/both"), "written")
        for layer in (top, base):
            if os.path.exists(f"{layer}/marks/new"):
                raise Wrong("a file made by an app is in a layer")
            with open(f"{layer}/marks/both") as file:
                equal("a file of a layer", file.read(), os.path.basename(layer))


def users(lab: Lab, report: Report) -> None:
    _as_user(lab, report, "app.user-name", USER, GROUP, (USER_ID, GROUP_ID))
    _as_user(lab, report, "app.user-path", OWNED, OWNED, (OWNER_ID, OWNER_GROUP_ID))
    with report.line("app.supplementary-gids"):
        asked = app("main", "serve", user="1", group="2", supplementaryGIDs=[7, 8])
        with refusable(lab, {"main": asked}) as pod:
            equal("groups", sorted({*pod.probe("main").facts["groups"]} - {2}), [7, 8])


def _as_user(lab: Lab, report: Report, name: str, user: str, group: str, wanted: tuple[int, int]) -> None:
    with report.line(name), refusable(lab, {"main": app("main", "serve", user=user, group=group)}) as pod:
        facts = pod.probe("main").facts
        equal("user and group", (facts["uid"], facts["gid"]), wanted)


def read_only_root(lab: Lab, report: Report) -> None:
    with (
        report.line("layers.read-only-root"),
        refusable(lab, {"main": {"app": app("main", "serve"), "readOnlyRootFS": True}}) as pod,
    ):
        answer = pod.probe("main").ask("make", "/marks/new", "written")
        if answer is None:
            raise Wrong("an app wrote to it")


def volumes(lab: Lab, report: Report) -> None:
    source = f"{lab.workplace}/volume"
    os.makedirs(source, exist_ok=True)
    with open(f"{source}/host", "w") as file:
        file.write("from the host")
    _volume(lab, report, "volumes.read-write", source, read_only=False, then=_written)
    _volume(lab, report, "volumes.read-only", source, read_only=True, then=_not_written)


def _volume(
    lab: Lab, report: Report, name: str, source: str, *, read_only: bool, then: Callable[[Probe, str], None]
) -> None:
    mounts = [{"volume": "data", "path": "/volume"}]
    kept = {"name": "data", "kind": "host", "source": source, "readOnly": read_only}
    apps = {"main": {"app": app("main", "serve"), "mounts": mounts}}
    with report.line(name), refusable(lab, apps, volumes=[kept]) as pod:
        main = pod.probe("main")
        equal("/volume/host", main.must("file", "/volume/host"), "from the host")
        then(main, source)


def _written(main: Probe, source: str) -> None:
    main.must("make", "/volume/app", "from the app")
    with open(f"{source}/app") as file:
        equal("on the host", file.read(), "from the app")


def _not_written(main: Probe, source: str) -> None:
    if main.ask("make", "/volume/other", "written") is None or os.path.exists(f"{source}/other"):
        raise Wrong("an app wrote to it")


def handlers(lab: Lab, report: Report) -> None:
    def with_handlers(pre: str, main: tuple[str, ...], **fields: Any) -> dict[str, Any]:
        events = [
            {"name": "pre-start", "exec": [PROGRAM, "pre-start", "exit", pre]},
            {"name": "post-stop", "exec": [PROGRAM, "post-stop", "exit", "0"]},
        ]
        return app("main", *main, eventHandlers=events, **fields)

    with report.line("handlers.order"):
        asked = with_handlers("0", ("exit", "0"), user="1", group="2")
        with refusable(lab, {"main": asked}) as pod:
            pod.ends()
            _in_order(pod)
    with report.line("handlers.failure"):
        must_fail(lab, with_handlers("3", ("serve",)))
    with report.line("handlers.stop"), refusable(lab, {"main": with_handlers("0", ("serve",))}) as pod:
        pod.probe("main").must("catch", 15, 0)
        pod.stop()
        pod.ends(lab.patience.stop + lab.patience.answer)
        pod.probe("post-stop")


def _in_order(pod: Pod) -> None:
    seen = pod.gather()
    equal("ran", [probe.name for probe in seen], ["pre-start", "main", "post-stop"])
    for probe in seen:
        equal(f"user and group of {probe.name}", (probe.facts["uid"], probe.facts["gid"]), (1, 2))


def must_fail(lab: Lab, asked: dict[str, Any]) -> None:
    """Checks that the app fails: it does not start, or its pod ends with an error."""
    try:
        with lab.pod({"main": asked}) as pod:
            if "main" in [probe.name for probe in pod.gather()]:
                raise Wrong("the app was started all the same")
            record = pod.ends()
            if not record.exit_code:
                raise Wrong("the pod ended with status 0")
    except KurmaError as error:
        if isinstance(error, StagerError) and error.data.get("status") is not None:
            return
        raise


def by_itself(pods: Mapping[str, Pod], main: Probe, other: Probe, report: Report) -> None:
    """Checks the end of the pod of :func:`status_of`, whose apps end and leave a daemon."""
    pod = pods["main"]
    alone = pods["other"] is not pod
    with report.line("end.exit-code"):
        main.must("daemon")
        left = [pid for pid in CgroupTree(pod.cgroup).pids() if pid != pod.owned.stager.pid]
        if not alone:
            other.tell("exit", 0)
        main.tell("exit", 5)
        equal("exit status of the stager", _stager_status(pod), 0)
        record = pod.ends()
        equal("exit code of the pod", record.exit_code, 5)
        equal("state of the pod", record.state, "stopped")
    with report.line("end.left-behind"):
        alive = [pid for pid in left if _alive(pid)]
        if alive:
            raise Wrong(f"alive after the pod's end: {alive}")
    with report.line("status.kept"):
        _known(pod.ends(), {"main": 5} if alone else {"main": 5, "other": 0, "seven": 7, "killed": 137})


def _known(record: PodRecord, wanted: dict[str, int]) -> None:
    codes = {each.name: each.exit_code for each in record.apps if each.exited}
    equal("exit codes", codes, wanted)


def _stager_status(pod: Pod) -> int:
    status = pod.owned.stager.wait(pod.lab.patience.answer)
    if status is None:
        raise Wrong("all apps have ended, and the stager has not")
    return status


def _alive(pid: int) -> bool:
    try:
        return state(pid) not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_failure(lab: Lab, report: Report) -> None:
    with report.line("end.start-failure"):
        missing = {"exec": ["/no/such/command"], "user": "0", "group": "0"}
        try:
            with lab.pod({"main": missing}) as pod:
                record = pod.ends()
                status = {each.name: each for each in record.apps}["main"]
                if not record.exit_code:
                    raise Wrong("the pod ended with status 0")
                if status.reason not in ("start-failed", "exited") or not status.exited:
                    raise Wrong(f"status says {status.to_json()}")
        except StagerError as error:
            if error.data.get("status") is None:
                raise
            if not error.data.get("said"):
                raise Wrong(f"{error.message}, and said nothing") from None


def stopping(lab: Lab, report: Report) -> None:
    names = ("main", "two") if lab.takes(2) else ("main",)
    with report.line("stop.signal"), lab.pod({name: app(name, "serve") for name in names}) as pod:
        apps = [pod.probe(name) for name in names]
        for code, each in enumerate(apps):
            each.must("catch", 15, 3 + code)
        pod.stop()
        for each in apps:
            equal("signal", each.signal(), 15)
        record = pod.ends(lab.patience.stop + lab.patience.answer)
        equal("state of the pod", (record.state, record.reason), ("stopped", None))
        equal("exit code of the pod", record.exit_code, 3)
    with report.line("stop.bounded"), lab.pod({"main": app("main", "serve")}) as pod:
        pod.probe("main").must("catch", 15, None)
        started = time.monotonic()
        pod.stop()
        pod.ends(lab.patience.stop + lab.patience.answer)
        took = time.monotonic() - started
        if took < 0.8 * lab.patience.stop:
            raise Wrong(f"it was killed after {took:.1f} s already")
