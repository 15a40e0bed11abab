"""Starts the program of a stager's image, for a pod or, prestarted, before the pod is known."""

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

#: The stager's own cgroup below the pod's, on v2: so that it can enable controllers in the pod's, which is its
#: root.
OWN_CGROUP = "stager"
#: Annotation of an image whose stager may be prestarted.
WAITS = "kurma.io/stager/waits"
#: Annotation of an image: the stager's call-ins of ``app-add,app-start,app-stop,app-rm``.
CALL_INS = "kurma.io/stager/callins"
_VERBS = ("add", "start", "stop", "rm")


@frozen
class StagerImage:
    """A verified image of a stager; ``path`` is the path of its tree."""

    id: str
    path: str
    manifest: ImageManifest

    @property
    def waits(self) -> bool:
        """Whether the stager may be prestarted."""
        return self.manifest.annotation(WAITS) == "true"

    @property
    def app_verbs(self) -> frozenset[str]:
        """The optional call-ins that the image declares: ``add`` for ``app-add``, and so on."""
        words = {word.strip() for word in (self.manifest.annotation(CALL_INS) or "").split(",")}
        return frozenset(verb for verb in _VERBS if f"app-{verb}" in words)


@frozen
class Begun:
    """A started stager. The caller closes the descriptors.

    :param ready: the read end of its descriptor 4.
    :param go: the write end of its descriptor 5; None: it is not prestarted.
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
    """Starts a stager.

    :param name: the stager's name, for messages.
    :param cgroup: the existing cgroup, relative to the hierarchies' roots.
    :param output: the file for its output; it is truncated.
    :param environment: overrides the image's environment.
    :param waits: it is prestarted, and gets a descriptor 5 to wait on.
    :raises StagerError: the image is not a stager's, or its program cannot be executed.
    :raises HostError: the process could not be started.
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
            # The exit codes 126 and 127 are for the user's own command.
            raise StagerError(f"stager {name}: {error.message}") from None
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return Begun(spawned, ready, go if waits else None)


def _command(name: str, image: StagerImage) -> tuple[tuple[str, ...], dict[str, str], str]:
    """The arguments, environment and working directory of the image's manifest."""
    app = image.manifest.app
    if app is None or not app.exec:
        raise StagerError(f"stager {name}: its image {image.manifest.name} gives no command (app.exec)")
    if image.manifest.dependencies:
        raise StagerError(
            f"stager {name}: its image {image.manifest.name} has dependencies, and a stager may have none"
        )
    environment = {"PATH": DEFAULT_PATH, **{pair.name: pair.value for pair in app.environment}}
    return tuple(app.exec), environment, app.working_directory or "/"
