"""Apps that come and go in a pod that runs: the optional call-ins of a stager, and what is bound for them (G10).

What stands in the live root is taken from the kernel, what should stand there from the manifest that the stager
was given (``stager/manifest``, kept up to date here): so whoever comes after a death at any point sets it right.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, StagerError
from kurma_core.json_text import loads
from kurma_core.linux.files import replace_file
from kurma_core.models.streams import Stdio
from kurma_core.schema import fit
from kurma_core.staging.live import LiveRoot
from kurma_core.staging.root import LAYERS, VOLUMES, layer_binds, of_volume, volume_mounts

if TYPE_CHECKING:
    from typing import Protocol

    from kurma_core.appc.image import ImageManifest
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.hookspecs.stager import RunningStager
    from kurma_core.spawn_plan import Starter
    from kurma_core.staging.callin import CallIn, StagerTimes

    class ChangeableStager(Protocol):
        """What a change of a pod's apps needs of :class:`.aci.AciStager`."""

        spawner: Starter
        times: StagerTimes

        def manifest(self, pod: PodSetup) -> bytes: ...
        def call_in(
            self,
            directory: str,
            running: RunningStager,
            argv: tuple[str, ...],
            stdio: Stdio,
            document: bytes | None,
        ) -> CallIn: ...


Json = Any

#: Of the stager's image: which of these call-ins it has, ``app-add,app-start,app-stop,app-rm``.
ANNOTATION = "kurma.io/stager/callins"
VERBS = ("add", "start", "stop", "rm")
#: Bytes of a call-in's output that are kept; it cannot write more.
_LIMIT = 1 << 16
_SHOWN = 2048
#: Seconds that a call-in may take beyond what it is told to wait.
_SLACK = 10.0


def declared(image: ImageManifest) -> frozenset[str]:
    """Which of :data:`VERBS` a stager's image says that it has."""
    words = {word.strip() for word in (image.annotation(ANNOTATION) or "").split(",")}
    return frozenset(verb for verb in VERBS if f"app-{verb}" in words)


def add(stager: ChangeableStager, pod: PodSetup, running: RunningStager) -> None:
    """Binds what the app needs and is not there yet, then tells the stager of it.

    :raises StagerError, HostError: something failed; :func:`remove` undoes it.
    """
    (app,) = pod.apps
    part = stager.manifest(pod)
    live = LiveRoot(stager.spawner, running)
    layers, volumes = live.bound(LAYERS), live.bound(VOLUMES)
    try:
        live.bind(
            [
                *layer_binds(layer for layer in app.layers if layer.id not in layers),
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
    _write(pod.directory, whole)


def remove(
    stager: ChangeableStager, directory: str, running: RunningStager, app: str, volumes: tuple[str, ...]
) -> None:
    """Has the stager forget the app, then takes out what is bound for nobody any more. Repeatable.

    :param volumes: the pod's that go with the app.
    """
    ask(stager, directory, running, ("app-rm", app), stager.times.change)
    whole = _read(directory)
    whole["pod"]["apps"] = [one for one in whole["pod"]["apps"] if one["name"] != app]
    whole["pod"]["volumes"] = [one for one in whole["pod"].get("volumes", []) if one["name"] not in volumes]
    whole["appImageOrder"].pop(app, None)
    _write(directory, whole)
    live = LiveRoot(stager.spawner, running)
    layers = {layer for order in whole["appImageOrder"].values() for layer in order}
    named = {volume["name"] for volume in whole["pod"]["volumes"]}
    live.unbind(
        [
            *(f"{LAYERS}/{name}" for name in sorted(live.bound(LAYERS) - layers)),
            *(f"{VOLUMES}/{name}" for name in sorted(live.bound(VOLUMES) - named)),
        ]
    )


def stop(
    stager: ChangeableStager, directory: str, running: RunningStager, app: str, timeout: float | None
) -> None:
    """Main has its time, and its post-stop handler as much again."""
    words = () if timeout is None else ("--timeout", f"{timeout:g}")
    main = stager.times.stop if timeout is None else timeout
    ask(stager, directory, running, ("app-stop", app, *words), main + stager.times.stop + _SLACK)


def ask(
    stager: ChangeableStager,
    directory: str,
    running: RunningStager,
    words: tuple[str, ...],
    timeout: float,
    document: bytes | None = None,
) -> None:
    """Runs such a call-in to its end; what it prints is kept for its error, as far as it is sane.

    :param words: its name and arguments. :param timeout: seconds; then it is killed.
    :raises StagerError: it says no, does not answer in time, or is not there.
    """
    output = os.memfd_create("answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        # It can neither fill the memory nor block.
        os.ftruncate(output, _LIMIT)
        fcntl.fcntl(output, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        argv = (f"/opt/stager/{words[0]}", *words[1:])
        code = stager.call_in(directory, running, argv, Stdio(null, output, output), document).wait(timeout)
        said = _sane(os.pread(output, min(_LIMIT, os.lseek(output, 0, os.SEEK_CUR)), 0))
    finally:
        os.close(output)
        os.close(null)
    if code != 0:
        why = said or f"its call-in {words[0]!r} ended with status {code}"
        error = StagerError(f"the stager refuses: {why}" if said else f"the stager fails: {why}", status=code)
        raise error.with_limit(directory)


def _sane(text: bytes) -> str:
    """The last lines of what a call-in printed, in one."""
    lines = text.decode("utf-8", "replace").replace("\0", "").split("\n")
    return " / ".join(line.strip() for line in lines if line.strip())[-_SHOWN:]


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
