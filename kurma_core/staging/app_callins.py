"""Adds, removes and stops apps of a running pod, by call-ins such as ``app-add`` and mounts in the stager's root.

The kernel tells which mounts there are; the stager's manifest (``stager/manifest``, kept up to date here) tells
which there should be. So a later command finishes the change of a command that died at any point.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import current
from kurma_core.errors import Cancelled, HostError, StagerError
from kurma_core.json_text import loads
from kurma_core.linux.files import replace_file
from kurma_core.models.streams import Stdio
from kurma_core.schema import fit
from kurma_core.staging.stager_process import CONTROL
from kurma_core.staging.stager_root import (
    LAYERS,
    RESERVED_KEY,
    SECRETS,
    VOLUMES,
    layer_binds,
    layers_of,
    of_volume,
    plan_json,
    secret_files,
    volume_mounts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Protocol

    from kurma_core.hookspecs.pod_setup import PodSetup, VolumeSetup
    from kurma_core.hookspecs.stager import RunningStagerHooks
    from kurma_core.models.isolator import IsolatorPlan
    from kurma_core.spawn_plan import Operation, Starter
    from kurma_core.staging.callin import CallIn, StagerTimes

    class ChangeableStager(Protocol):
        """The part of :class:`.aci_stager.AciStager` that changes a pod's apps."""

        spawner: Starter
        times: StagerTimes

        def manifest(self, pod: PodSetup) -> bytes: ...
        def app_verbs(self, directory: str) -> frozenset[str]: ...
        def begin(
            self,
            directory: str,
            running: RunningStagerHooks,
            verb: str,
            arguments: tuple[str, ...],
            stdio: Stdio,
            document: bytes | None,
        ) -> CallIn: ...


class LiveRoot:
    """The root of a running stager. :param running: the stager; its pidfd guards against a reused PID."""

    def __init__(self, spawner: Starter, running: RunningStagerHooks) -> None:
        self._spawner = spawner
        self._running = running

    def bind(self, operations: Sequence[Operation]) -> None:
        """Carries out mount operations in order: sources are paths of the host, targets are paths of the root.

        :raises HostError: an operation failed, or the stager has ended; earlier operations are not undone.
        """
        if operations:
            self._spawner.bind_into(self._running.pid, operations, pidfd=self._running.fileno())

    def unbind(self, targets: Iterable[str]) -> None:
        """Unmounts these paths, and removes the mount points. It can be repeated.

        :raises HostError: a path cannot be unmounted, or the stager has ended.
        """
        paths = list(targets)
        if paths:
            self._spawner.unbind_from(self._running.pid, paths, pidfd=self._running.fileno())

    def identity_of(self, path: str) -> tuple[int, int] | None:
        """As :func:`identity_of`, for a path of the root."""
        return identity_of(f"/proc/{self._running.pid}/root{path}")

    def bound(self, *directories: str) -> list[set[str]]:
        """For each of these directories of the root, the names of the mounts right below it, as the kernel's mount
        table has them.

        :raises StagerError: the stager has ended.
        """
        from kurma_core.linux.mounts import mountinfo

        try:
            targets = [mount.target for mount in mountinfo(self._running.pid)]
        except OSError:
            targets = []
        if not self._running.alive():
            # The mount table may have been another process's, with a reused PID.
            raise StagerError("the pod's stager has ended")
        ways = [target.rpartition("/") for target in targets]
        return [{name for way, _, name in ways if way == directory} for directory in directories]


Json = Any

#: Most bytes that a call-in can write.
_LIMIT = 1 << 16
_SHOWN = 2048
#: Seconds that a call-in may take in addition to its own timeout.
_SLACK = 10.0


def add(stager: ChangeableStager, pod: PodSetup, running: RunningStagerHooks) -> None:
    """Binds the app's layers and volumes that are not bound yet, and adds the app by the stager's call-in.

    :raises StagerError, HostError: a step failed; :func:`remove` undoes the others.
    """
    (app,) = pod.apps
    part = stager.manifest(pod)
    live = LiveRoot(stager.spawner, running)
    layers, volumes, secrets = live.bound(LAYERS, VOLUMES, SECRETS)
    try:
        # Of a command that died at the same addition; the values may have changed since.
        live.unbind([f"{SECRETS}/{app.name}"] if app.name in secrets else [])
        live.bind(
            [
                *secret_files(pod.apps),
                *layer_binds(layer for layer in layers_of(pod) if layer.id not in layers),
                *volume_mounts([one for one in pod.volumes if one.name not in volumes], links=pod.volume_links),
            ]
        )
    except HostError as error:
        raise of_volume(error, pod.volumes) from None
    ask(stager, pod.directory, running, ("app-add", app.name), stager.times.change, part)
    whole, new = _read(pod.directory), loads(part, own=True)
    whole["pod"]["apps"] = [one for one in whole["pod"]["apps"] if one["name"] != app.name] + new["pod"]["apps"]
    whole["pod"]["volumes"] = new["pod"].get("volumes", [])
    whole["images"].update(new["images"])
    whole["appImageOrder"].update(new["appImageOrder"])
    _reserved(whole)[app.name] = _reserved(new).get(app.name)
    _write(pod.directory, whole)


def identity_of(path: str) -> tuple[int, int] | None:
    """Device and inode of a file; None: it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def renew(
    stager: ChangeableStager, volumes: Iterable[VolumeSetup], running: RunningStagerHooks, *, links: bool
) -> None:
    """See :meth:`.aci_stager.AciStager.renew_volumes`. Running apps keep what they have mounted."""
    live = LiveRoot(stager.spawner, running)
    for volume in volumes:
        if identity_of(volume.mounted) == live.identity_of(f"{VOLUMES}/{volume.name}"):
            continue
        live.unbind([f"{VOLUMES}/{volume.name}"])
        try:
            live.bind(volume_mounts([volume], links=links))
        except HostError as error:
            raise of_volume(error, [volume]) from None


def remove(
    stager: ChangeableStager, directory: str, running: RunningStagerHooks, app: str, volumes: tuple[str, ...]
) -> None:
    """Removes the app by the stager's call-in, and unbinds layers and volumes that no app uses. It can be
    repeated.

    :param volumes: the pod's volumes that are removed with the app.
    """
    ask(stager, directory, running, ("app-rm", app), stager.times.change)
    whole = _read(directory)
    whole["pod"]["apps"] = [one for one in whole["pod"]["apps"] if one["name"] != app]
    whole["pod"]["volumes"] = [one for one in whole["pod"].get("volumes", []) if one["name"] not in volumes]
    whole["appImageOrder"].pop(app, None)
    _reserved(whole).pop(app, None)
    _write(directory, whole)
    live = LiveRoot(stager.spawner, running)
    layers = {layer for order in whole["appImageOrder"].values() for layer in order}
    for extra in _reserved(whole).values():
        for mount in (extra or {}).get("mounts", []):
            layers.update(mount.get("layers", []))
    named = {volume["name"] for volume in whole["pod"]["volumes"]}
    places = {LAYERS: layers, VOLUMES: named, SECRETS: set(whole["appImageOrder"])}
    live.unbind(
        [
            f"{place}/{name}"
            for place, bound in zip(places, live.bound(*places), strict=True)
            for name in sorted(bound - places[place])
        ]
    )


def update(
    stager: ChangeableStager, directory: str, running: RunningStagerHooks, app: str, plan: IsolatorPlan
) -> None:
    """Gives the app another plan by the stager's call-in. It can be repeated.

    :raises StagerError: the stager refuses; the earlier plan is in force.
    """
    document = json.dumps({"plan": plan_json(plan)}, separators=(",", ":")).encode()
    ask(stager, directory, running, ("app-update", app), stager.times.change, document)


def stop(
    stager: ChangeableStager, directory: str, running: RunningStagerHooks, app: str, timeout: float | None
) -> None:
    """Stops an app. The call-in may take the app's timeout, and the stop timeout again for the post-stop
    handler."""
    words = () if timeout is None else ("--timeout", f"{timeout:g}")
    main = stager.times.stop if timeout is None else timeout
    patience = main + stager.times.stop + _SLACK
    ask(stager, directory, running, ("app-stop", app, *words), patience, cancellable=True)


def ask(
    stager: ChangeableStager,
    directory: str,
    running: RunningStagerHooks,
    words: tuple[str, ...],
    timeout: float,
    document: bytes | None = None,
    *,
    cancellable: bool = False,
) -> None:
    """Asks the stager by its control socket; or runs a call-in to its end, and the printable part of its output
    becomes the text of an error.

    :param words: its name and arguments. :param timeout: seconds; then it is killed.
    :param cancellable: the wait ends when this thread's operation is cancelled; the stager may still do the work.
    :raises StagerError: the call-in fails, is missing, or does not end in time.
    """
    if CONTROL in stager.app_verbs(directory):
        from kurma_core.staging import control

        try:
            control.ask(running, words, timeout, document, cancellable=cancellable)
        except StagerError as error:
            raise error.with_limit(directory) from None
        return
    output = os.memfd_create("answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        # A sealed file: the call-in can neither fill the memory nor block on a write.
        os.ftruncate(output, _LIMIT)
        fcntl.fcntl(output, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        verb, *rest = words
        call = stager.begin(directory, running, verb, tuple(rest), Stdio(null, output, output), document)
        code = _cancellable(call, timeout) if cancellable else call.wait(timeout)
        said = _sane(os.pread(output, min(_LIMIT, os.lseek(output, 0, os.SEEK_CUR)), 0))
    finally:
        os.close(output)
        os.close(null)
    if code != 0:
        why = said or f"its call-in {words[0]!r} ended with status {code}"
        failure = StagerError(f"the stager refuses: {why}" if said else f"the stager fails: {why}", status=code)
        raise failure.with_limit(directory)


def _cancellable(call: CallIn, timeout: float) -> int:
    """Waits for a call-in. :raises Cancelled: this thread's operation was cancelled, and the call-in was
    killed."""
    try:
        with current().waking(call.give_up):
            return call.wait(timeout)
    except Cancelled:
        call.end()
        raise


def _sane(text: bytes) -> str:
    """The last lines of a call-in's output, joined to one."""
    lines = text.decode("utf-8", "replace").replace("\0", "").split("\n")
    return " / ".join(line.strip() for line in lines if line.strip())[-_SHOWN:]


def _reserved(whole: dict[str, Json]) -> dict[str, Json]:
    """The reserved part of a manifest about each app."""
    found: dict[str, Json] = whole.setdefault("stagerConfig", {}).setdefault(RESERVED_KEY, {})
    apps: dict[str, Json] = found.setdefault("apps", {})
    return apps


def _read(directory: str) -> dict[str, Json]:
    try:
        with open(f"{directory}/stager/manifest", "rb") as stream:
            value: dict[str, Json] = loads(stream.read(), own=True)
        fit(value, dict, "it")
    except (OSError, ValueError) as error:
        raise StagerError(f"what the pod's stager was told cannot be read: {error}") from None
    return value


def _write(directory: str, value: dict[str, Json]) -> None:
    replace_file(f"{directory}/stager/manifest", json.dumps(value, separators=(",", ":")).encode())
