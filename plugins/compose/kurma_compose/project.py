"""The pods of a file: which of them run as the file says, and the steps that make all of them do.

Annotations mark each pod with its project and a digest of its place in the file, so that every step is found again
after a crash: the same command continues.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kurma_compose import configs
from kurma_compose.lock import locked
from kurma_compose.stopping import Stops
from kurma_core.api import pod_file
from kurma_core.appc.image import NameValue
from kurma_core.appc.types import is_image_id
from kurma_core.errors import (
    ImageNotFoundError,
    KurmaError,
    ManifestError,
    PodNotFoundError,
    PodStateError,
    UsageError,
    VolumeNotFoundError,
    VolumeStateError,
)
from kurma_core.models.health import HEALTHY, UNHEALTHY
from kurma_core.models.pod import ENDED_STATES
from kurma_core.value import field, frozen, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from kurma_core.api.operations import Api, Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.pod import PodApp, PodManifest
    from kurma_core.hookspecs.command import CommandSession
    from kurma_core.models.pod import PodRecord

    Json = Any

#: Annotations of pods of a project: its name, and a digest of the pod in its file.
PROJECT, VERSION = "kurma.io/up/project", "kurma.io/up/version"
#: Annotation with names of pods of the file: ``up`` starts the pod after them, and ``down`` stops it before them.
AFTER = "kurma.io/up/after"
#: The same; ``up`` waits until they are healthy.
AFTER_HEALTHY = "kurma.io/up/after-healthy"
#: The same; ``up`` waits until they have ended, and all their apps with exit code 0.
AFTER_SUCCESS = "kurma.io/up/after-success"
#: Annotation of an app, with the value ``true``: when ``up`` makes the pod, it runs the app to its end before it
#: starts those that follow, and removes it.
FIRST = "kurma.io/up/first"

#: Annotation of a pod with names of volumes that ``down`` does not remove: they belong to others.
KEEP_VOLUMES = "kurma.io/up/keep-volumes"
_RESTART = "kurma.io/restart"
_ORDERS = (AFTER, AFTER_HEALTHY, AFTER_SUCCESS)
_USERNS = "kurma.io/userns"

#: Seconds between two looks at the health of a pod.
_LOOK_AGAIN = 0.2


@frozen
class Project:
    """A file's pods.

    :param name: the project's. :param pods: requests by the pods' names, in the order of the file.
    :param files: contents that the pods have as files, by the names of the secrets that keep them.
    """

    name: str
    pods: Mapping[str, PodRequest]
    files: Mapping[str, bytes] = field(default_factory=dict)


@frozen
class Options:
    """Options for images and powers: see :class:`kurma_core.api.pods.PodRequest`.

    :param pulls: policies of single images, by locator, in place of ``pull``.
    :param replace: replace all pods, unchanged ones, too.
    """

    pull: str = "new"
    grants: tuple[str, ...] = ()
    insecure: frozenset[str] = frozenset()
    pulls: Mapping[str, str] = field(default_factory=dict)
    replace: bool = False


def name_of(file: str, given: str | None, found: str | None) -> str:
    """The name of a file's project.

    :param given: on the command line. :param found: in the file.
    :raises UsageError: the file is standard input, and neither names it.
    """
    name = given if given is not None else found
    if name == "":
        raise UsageError("--project: the name is empty")
    if name is None and file == "-":
        raise UsageError("the pods of standard input have no project", hint="give --project NAME")
    return name or os.path.realpath(file)


def read(file: str, given: str | None, options: Options, note: Callable[[str], None]) -> Project:
    """Reads a pod file.

    :param given: name of the project on the command line. :param note: called with one line for each deviation.
    :raises KurmaError: the file cannot be read, or a pod of it is malformed.
    """
    name, pods, files = pods_in(file, given, note)
    return replace(made(name, pods, file, options, note), files=files)


def pods_in(
    file: str, given: str | None, note: Callable[[str], None]
) -> tuple[str, list[dict[str, Json]], dict[str, bytes]]:
    """The name of a file's project, its pods, and the contents of their files by the names of secrets.

    :raises UsageError: it is a compose file, or as :func:`name_of`.
    :raises KurmaError: as :func:`kurma_core.api.pod_file.read`.
    """
    value = pod_file.read_value(file)
    name = "standard input" if file == "-" else file
    if isinstance(value, dict) and "services" in value and not value.keys() & {"apps", pod_file.PODS}:
        raise UsageError(
            f"{name} is a compose file",
            hint=f"kurma compose convert {file} -o pods.yml makes a pod file of it",
        )
    contents: dict[str, bytes] = {}
    if isinstance(value, dict) and pod_file.PODS in value:
        contents = configs.contents(value, name)
        value = {key: one for key, one in value.items() if key != configs.CONFIGS}
    found = pod_file.pods_of(value, file, note)
    project = name_of(file, given, found.project)
    return project, *configs.with_secrets(found.pods, contents, project, name)


def made(
    project: str, pods: Sequence[dict[str, Json]], file: str, options: Options, note: Callable[[str], None]
) -> Project:
    """The project of some pods, each marked with the project's name and a digest of itself.

    :param pods: in the form of :class:`kurma_core.api.pod_file.PodFile`. :param file: its path, for errors.
    :param note: called with one line for each deviation.
    :raises KurmaError: a pod is malformed, or has no name of its own.
    """
    place = "standard input" if file == "-" else file
    requests: dict[str, PodRequest] = {}
    for index, pod in enumerate(pods):
        name = pod.get("name")
        if name is None:
            raise UsageError(
                f"{place}: pod {index + 1} has no name", hint="write name: NAME; later runs find the pod by it"
            )
        marked = pod_file.marked(pod, {PROJECT: project, VERSION: pod_file.digest(pod)})
        try:
            request = pod_file.request_of(marked, file, note, grants=options.grants, insecure=options.insecure)
        except ManifestError as error:
            if len(pods) > 1:
                error.message = f"{place}: pod {name}: {error.message.removeprefix(f'{place}: ')}"
            raise
        if name in requests:
            raise UsageError(f"{place}: two pods have the name {name}", hint="give each a name of its own")
        requests[name] = request
    _check_waits(requests, place)
    return Project(project, requests)


def _check_waits(requests: Mapping[str, PodRequest], place: str) -> None:
    """:raises UsageError: a pod depends on itself, on a later one, or on the end of one that never ends."""
    had: set[str] = set()
    for name, request in requests.items():
        had.add(name)
        for other in _names(request, AFTER_SUCCESS):
            if other in requests and any(map(_is_first, requests[other].template.pod.apps)):
                raise UsageError(
                    f"{place}: pod {name} waits for the end of pod {other}, which does not end by itself",
                    hint=f"a pod with apps that run before others ({FIRST}) runs until it is stopped",
                )
        for other in _waits_for(request):
            if other == name or (other in requests and other not in had):
                what = "itself" if other == name else f"pod {other}, which comes after it in the file"
                raise UsageError(
                    f"{place}: pod {name} waits for {what}", hint="list pods after those they wait for"
                )


def _waits_for(request: PodRequest) -> list[str]:
    """Names of the pods that start before this one."""
    return [name for key in _ORDERS for name in _names(request, key)]


def _names(request: PodRequest, key: str) -> list[str]:
    """Names of the pods that the pod waits for. :param key: the annotation with them."""
    return (request.template.pod.annotation(key) or "").split()


def pods_of(client: Api, project: str) -> dict[str, PodRecord]:
    """The existing pods of a project, by name."""
    return {pod.name: pod for pod in client.pods() if pod.annotation(PROJECT) == project}


def up(
    client: Api, project: Project, options: Options, progress: Progress | None
) -> Iterator[tuple[str, str, PodRecord | None]]:
    """Makes the pods of the project run as its file says, and removes pods that the file no longer has.

    Before a pod is removed, all images are fetched, and the new versions of changed pods are made on trial.
    Changed pods are removed before new ones are started: a new pod may publish the port of an old one.

    :returns: for each pod its name, a word for what was done, and its record, if a start was tried.
    :raises KurmaError: an image is not available, or a pod cannot be removed, made or started; or one that another
        pod waits for is not healthy, or has failed.
    """
    there = pods_of(client, project.name)
    others = {pod.name for pod in client.summaries()} - set(there)
    for name in project.pods:
        if name in others:
            raise UsageError(
                f"there is a pod {name} already, which does not belong to {project.name}",
                hint=f"remove it (kurma rm {name}), or name the pod of the file otherwise",
            )
    for name, request in project.pods.items():
        for other in _waits_for(request):
            if other not in project.pods and other not in others:
                raise PodNotFoundError(f"pod {name} waits for pod {other}, which does not exist", pod=other)
    images: dict[str, dict[str, str]] = {}
    for name, request in project.pods.items():
        with _naming(name):
            images[name] = _images(client, request, options, progress)
    kept = {
        name: there[name]
        for name, request in project.pods.items()
        if not options.replace and name in there and _is_right(there[name], request, images[name])
    }
    for name, request in project.pods.items():
        if name in there and name not in kept:
            with _naming(name):
                _try(client, request, progress)
    gone = {name: pod for name, pod in there.items() if name not in project.pods}
    changed = {name: there[name] for name in reversed([*project.pods]) if name in there and name not in kept}
    for name, error in _removals(client, {**gone, **changed}):
        if error is not None:
            with _naming(name):
                raise error
        if name in gone:
            yield name, "removed", None
    for name, request in project.pods.items():
        starts = name not in kept or kept[name].state in ("prepared", *ENDED_STATES)
        if starts:
            wait(client, _names(request, AFTER_HEALTHY))
            for other in _names(request, AFTER_SUCCESS):
                _wait_for_success(client, other)
        if name not in kept:
            with _naming(name):
                record = _make(client, request, progress)
            yield name, "replaced" if name in there else "created", record
        elif starts:
            yield name, "started", client.launch(kept[name].uuid)
        else:
            yield name, "unchanged", None


def run(session: CommandSession, client: Api, project: Project, options: Options) -> int:
    """Does :func:`apply`. Waits for another command that changes the pods of the project."""
    with locked(client, project.name, session.note):
        configs.store(client, project.files)
        code = apply(session, client, project, options)
        configs.forget(client, (configs.prefix(project.name),), project.files)
        return code


def apply(session: CommandSession, client: Api, project: Project, options: Options, what: str = "") -> int:
    """Does :func:`up`, and prints a line for each pod. The caller holds the project's lock.

    :param what: word before the name of each pod.
    :returns: the exit code: of the first app or pod that did not start, else 0.
    :raises KurmaError: as :func:`up`.
    """
    code = 0
    for pod, done, record in up(client, project, options, session.progress()):
        session.line(f"{what}{pod}: {done}")
        for app in () if record is None else record.unstarted:
            session.note(f"pod {pod}: app {app.name}: {app.told}")
            code = code or app.exit_code or 125
        if record is not None and record.state == "errored":
            session.note(f"pod {pod}: {record.reason}")
            code = code or record.exit_code or 125
    return code


def wait_for_all(client: Api, project: Project) -> None:
    """Waits until all pods of the project are up. A pod whose end another one waits for may have ended well.

    :raises PodStateError: as :func:`wait`.
    """
    wait(client, project.pods, {name for one in project.pods.values() for name in _names(one, AFTER_SUCCESS)})


def wait(client: Api, names: Collection[str], ending: Collection[str] = ()) -> None:
    """Waits until all these pods run, and those with a health check are healthy.

    :param ending: those of them that may also have ended with exit code 0.
    :raises PodStateError: one of them has ended, or is unhealthy. :raises PodNotFoundError: there is no such pod.
    """
    # Looks at all of them each time: the first failure ends the wait.
    while False in [_is_up(client.pod(name), may_end=name in ending) for name in names]:
        time.sleep(_LOOK_AGAIN)


def _is_up(pod: PodRecord, *, may_end: bool) -> bool:
    """Whether the pod runs, and is healthy if it has a health check.

    :param may_end: it is also up if it has ended with exit code 0.
    :raises PodStateError: it has ended, or is unhealthy.
    """
    if may_end and pod.state in ENDED_STATES and pod.exit_code == 0:
        return True
    if pod.state in ENDED_STATES or pod.health == UNHEALTHY:
        state = pod.state if pod.state in ENDED_STATES else UNHEALTHY
        raise PodStateError(
            f"pod {pod.name} is {state}", hint=f"kurma show {pod.name}; kurma logs {pod.name}", pod=pod.uuid
        )
    # A pod has no health before its apps run, nor after they have ended.
    apps = {app.state for app in pod.apps}
    settled = "running" in apps and not apps & {"created", "starting", "restarting"}
    return pod.state == "running" and settled and pod.health in (None, HEALTHY)


def _wait_for_success(client: Api, name: str) -> None:
    """:raises PodStateError: an app of the pod has failed. :raises PodNotFoundError: there is no such pod."""
    pod = client.wait(name)
    if pod.exit_code != 0:
        raise PodStateError(
            f"pod {name} has ended with exit code {pod.exit_code}", hint=f"kurma logs {name}", pod=pod.uuid
        )


# --- apps that run before others ---------------------------------------------------------------------------------


def _is_first(app: PodApp) -> bool:
    return app.annotation(FIRST) == "true"


@contextmanager
def _naming(pod: str) -> Iterator[None]:
    """Names the pod in errors that do not. :param pod: its name."""
    try:
        yield
    except KurmaError as error:
        if f"pod {pod}" not in error.message:
            error.prefix(f"pod {pod}")
        raise


def _try(client: Api, request: PodRequest, progress: Progress | None) -> None:
    """Makes a pod under another name, and removes it: if it cannot be made, the present pod goes on.

    If the command is killed in between, the next one removes the pod: it has the mark of the project.

    :raises KurmaError: the pod cannot be made.
    """
    # The pod that runs has the name, the ports, and IDs of the host that the file names.
    pod = request.template.pod
    template = replace(request.template, name=None, uuid=None, pod=replace(pod, ports=()))
    userns = "auto" if ":" in (pod.annotation(_USERNS) or "") else request.userns
    trial = replace(request, name=None, uuid=None, userns=userns, template=template)
    made = client.prepare(trial, progress)
    with suppress(PodNotFoundError):  # another process may have removed it
        client.rm(made.uuid)


def _make(client: Api, request: PodRequest, progress: Progress | None) -> PodRecord:
    """Makes a pod and starts it.

    If apps of it run before others, the pod is made without apps, and gets them one after the other. Only then it
    is marked as the file's version: the next command makes an incomplete pod anew.

    :raises PodStateError: an app that runs before others has failed. The pod stays, with its log.
    """
    pod = request.template.pod
    version = pod.annotation(VERSION)
    if version is None or not any(map(_is_first, pod.apps)):
        return client.prepare(request, progress, start=True)
    marks = tuple(one for one in pod.annotations if one.name != VERSION)
    bare = replace(request.template, pod=replace(pod, apps=(), annotations=marks))
    record = client.prepare(replace(request, template=bare), progress, start=True)
    if record.state != "running":
        return record
    for app in pod.apps:
        # The pod has the volumes already, and an app alone has no settings of the pod.
        alone = replace(bare, pod=replace(bare.pod, apps=(_once(app),), volumes=(), annotations=(), ports=()))
        record = client.app_add(record.uuid, replace(request, template=alone), start=True, progress=progress)
        if _is_first(app):
            _end(client, record, app.name)
        elif any(one.name == app.name for one in record.unstarted):
            return record
    return client.pod_annotate(record.uuid, set={VERSION: version})


def _once(app: PodApp) -> PodApp:
    """The app; if it runs before others, no policy restarts it."""
    if not _is_first(app):
        return app
    others = tuple(one for one in app.annotations if one.name != _RESTART)
    return replace(app, annotations=(*others, NameValue(_RESTART, "never")))


def _end(client: Api, pod: PodRecord, app: str) -> None:
    """Waits until an app has ended, and removes it. :raises PodStateError: it has failed."""
    while True:
        found = next((one for one in pod.apps if one.name == app), None)
        if found is None or pod.state in ENDED_STATES:
            raise PodStateError(f"pod {pod.name} has ended before its app {app}", pod=pod.uuid)
        if found.exited:
            break
        time.sleep(_LOOK_AGAIN)
        pod = client.pod(pod.uuid)
    if found.exit_code != 0:
        told = f": {found.told}" if found.told else ""
        raise PodStateError(
            f"pod {pod.name}: app {app}, which runs before the others, has ended with exit code "
            f"{found.exit_code}{told}",
            hint=f"kurma logs {pod.name}/{app}; then run the command again",
            pod=pod.uuid,
        )
    client.app_rm(pod.uuid, app)


# --- removal -----------------------------------------------------------------------------------------------------


def down(session: CommandSession, client: Api, project: str, order: list[str]) -> None:
    """Does :func:`take_down`. Waits for another command that changes the pods of the project."""
    with locked(client, project, session.note):
        take_down(session, client, project, order)
        configs.forget(client, (configs.prefix(project),))


def take_down(session: CommandSession, client: Api, project: str, order: list[str], what: str = "") -> None:
    """Stops and removes the pods of a project, and prints a line for each, in the reverse order of its file. The
    caller holds the project's lock.

    They stop at the same time, except that a pod stops after those that depend on it.

    :param order: names of the file's pods; other pods of the project are removed first.
    :param what: word before the name of each pod.
    :raises KurmaError: the first failure. Other pods are removed, unless the failed one depends on them; their
        failures are noted.
    """
    there = pods_of(client, project)
    names = [*(name for name in there if name not in order), *(one for one in reversed(order) if one in there)]
    failed: list[tuple[str, KurmaError]] = []
    for name, error in _removals(client, {name: there[name] for name in names}):
        if error is not None:
            failed.append((name, error))
        else:
            session.line(f"{what}{name}: removed")
    for name, failure in failed[1:]:
        session.note(failure.message if name in failure.message else f"pod {name}: {failure.message}")
    if failed:
        raise failed[0][1]


def _removals(client: Api, pods: Mapping[str, PodRecord]) -> Iterator[tuple[str, KurmaError | None]]:
    """Stops pods and removes them in this order. They stop at the same time, except that a pod stops after those
    that depend on it.

    :param pods: by name.
    :returns: for each its name, and why it could not be removed. Nothing is done to one that a failed one depends
        on.
    """
    needs = {name: _depends_on(pod) for name, pod in pods.items()}
    after = {name: [other for other in pods if other != name and name in needs[other]] for name in pods}
    with Stops(lambda name: _stop(client, pods[name]), after) as stops:
        for name, pod in pods.items():
            failed = None
            try:
                stops.wait(name)
                with suppress(PodNotFoundError):
                    client.rm(pod.uuid)
            except KurmaError as error:
                failed = error
            yield name, failed


def _depends_on(pod: PodRecord) -> frozenset[str]:
    """Names of the pods that stop after this one."""
    return frozenset(name for key in _ORDERS for name in (pod.annotation(key) or "").split())


def remove_volumes(session: CommandSession, client: Api, names: Iterable[str]) -> None:
    """Removes named volumes, and prints a line for each. One that other pods use stays, with a note."""
    for name in names:
        try:
            client.volume_rm(name)
            session.line(f"volume {name}: removed")
        except VolumeNotFoundError:
            continue
        except VolumeStateError:
            pods = ", ".join(client.volume(name).pods)
            session.note(f"volume {name}: kept, since other pods use it: {pods}")


def volumes_of(pods: Iterable[PodManifest]) -> list[str]:
    """The named volumes that pods of a file use, each once, without those that belong to others."""
    names: dict[str, None] = {}
    kept: set[str] = set()
    for pod in pods:
        own = [mount.app_volume for app in pod.apps for mount in app.mounts if mount.app_volume is not None]
        names |= dict.fromkeys(str(one.volume) for one in (*pod.volumes, *own) if one.kind == "named")
        kept |= set((pod.annotation(KEEP_VOLUMES) or "").split())
    return [name for name in names if name not in kept]


def _stop(client: Api, pod: PodRecord) -> None:
    """Stops a pod if it runs; another process may have removed it."""
    if pod.state not in ("prepared", *ENDED_STATES):
        with suppress(PodNotFoundError):
            client.stop(pod.uuid)


def _images(client: Api, request: PodRequest, options: Options, progress: Progress | None) -> dict[str, str]:
    """IDs of the images that a pod would have now: by app, and of image volumes by ``volume NAME``."""
    pod = request.template.pod
    locators = request.template.locators()
    locators |= {f"volume {one.name}": one.image for one in pod.volumes if one.image is not None}
    return {what: _image(client, locator, options, progress) for what, locator in locators.items()}


def _image(client: Api, locator: str, options: Options, progress: Progress | None) -> str:
    if is_image_id(locator):
        return client.image(locator).record.id
    pull = options.pulls.get(locator, options.pull)
    if pull != "always":
        # The name of an image that was built here has no source: the store's image is meant.
        with suppress(ImageNotFoundError):
            found = client.image(locator).record
            if any(came.trust == "local" and came.source is None for came in found.provenance):
                return found.id
    return client.image_fetch(locator, pull=pull, insecure=options.insecure, progress=progress).id


def _is_right(pod: PodRecord, request: PodRequest, images: Mapping[str, str]) -> bool:
    """Whether a pod was made of this request and these images."""
    volumes = pod.manifest.get("volumes") or ()
    had = {**pod.images, **{f"volume {one['name']}": one.get("kurma.io/image") for one in volumes}}
    same = pod.annotation(VERSION) == request.template.pod.annotation(VERSION)
    gone = {app.name for app in request.template.pod.apps if _is_first(app)}
    return same and all(had.get(what) == image for what, image in images.items() if what not in gone)
