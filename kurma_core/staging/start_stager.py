"""Starting the program of a stager's image, for a pod that is known, or for one that is yet to come (G1, G10)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import CommandNotExecutableError, CommandNotFoundError, StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import DEFAULT_PATH
from kurma_core.spawn_plan import SpawnPlan
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.spawn_plan import RootPlan, Started, Starter

#: Below the pod's cgroup, on v2: so that a stager may make children of that one, which is what it is shown.
OWN_CGROUP = "stager"
#: On a stager's image: it may be started before its pod is known.
WAITS = "kurma.io/stager/waits"
#: On a stager's image: which of these call-ins it has, ``app-add,app-start,app-stop,app-rm``.
CALL_INS = "kurma.io/stager/callins"
_VERBS = ("add", "start", "stop", "rm")


@frozen
class StagerImage:
    """A stager's image, verified for this use: ``path`` of its tree, its manifest."""

    id: str
    path: str
    manifest: ImageManifest

    @property
    def waits(self) -> bool:
        """Whether it may be started before its pod is known."""
        return self.manifest.annotation(WAITS) == "true"

    @property
    def app_verbs(self) -> frozenset[str]:
        """The optional call-ins that it has: ``add`` for ``app-add``, and so on."""
        words = {word.strip() for word in (self.manifest.annotation(CALL_INS) or "").split(",")}
        return frozenset(verb for verb in _VERBS if f"app-{verb}" in words)


@frozen
class Begun:
    """A stager that was started. Descriptors are the holder's.

    :param ready: the read end of its descriptor 4.
    :param go: the write end of its descriptor 5; None: its pod is known already.
    """

    process: Started
    ready: int
    go: int | None


def begin(
    spawner: Starter,
    name: str,
    image: StagerImage,
    *,
    root: RootPlan,
    network_namespace: str | None,
    cgroup: str,
    output: str,
    stdin: int | None = None,
    environment: Mapping[str, str] | None = None,
    waits: bool = False,
) -> Begun:
    """:param name: the stager's, for messages.
    :param cgroup: relative, made already.
    :param output: the file to which it prints; emptied.
    :param environment: over the image's own.
    :param waits: it gets a descriptor 5 to wait on.
    :raises StagerError: its image cannot be a stager's, or its program not be executed.
    :raises HostError: it could not be started.
    """
    argv, found, directory = _command(name, image)
    printed = os.open(
        output,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    ready, running = os.pipe2(os.O_CLOEXEC)
    ours, theirs = [ready], [printed, running]
    fds = {1: printed, 2: printed, 4: running}
    if stdin is not None:
        fds[0] = stdin
    if waits:
        fds[5], go = os.pipe2(os.O_CLOEXEC)
        ours.append(go)
        theirs.append(fds[5])
    try:
        spawned = spawner.start(
            SpawnPlan(
                argv=argv,
                environment={**found, **(environment or {})},
                cwd=directory,
                root=root,
                netns_path=network_namespace,
                cgroup=tuple(CgroupTree(cgroup).leaf(OWN_CGROUP)),
                fds=fds,
                new_session=True,
            )
        )
    except BaseException as error:
        for fd in ours:
            os.close(fd)
        if isinstance(error, (CommandNotFoundError, CommandNotExecutableError)):
            # Not the command that the user asked for: the exit code must not say so.
            raise StagerError(f"stager {name}: {error.message}") from None
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return Begun(spawned, ready, go if waits else None)


def _command(name: str, image: StagerImage) -> tuple[tuple[str, ...], dict[str, str], str]:
    """Arguments, environment and working directory that the image gives."""
    app = image.manifest.app
    if app is None or not app.exec:
        raise StagerError(f"stager {name}: its image {image.manifest.name} gives no command (app.exec)")
    if image.manifest.dependencies:
        raise StagerError(
            f"stager {name}: its image {image.manifest.name} has dependencies, and a stager may have none"
        )
    environment = {"PATH": DEFAULT_PATH, **{pair.name: pair.value for pair in app.environment}}
    return tuple(app.exec), environment, app.working_directory or "/"
