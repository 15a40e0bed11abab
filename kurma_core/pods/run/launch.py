"""Launches a prepared pod: the table of start steps (cgroup, namespaces, networks, stager …), each with its undo.

The names of all steps are recorded on disk before the first step is done. Teardown undoes the recorded steps in
reverse, and then records the end of the pod with the steps that could not be undone. Every undo can be repeated:
so whenever a process dies, any other process can finish the recorded steps.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kurma_core import VERSION
from kurma_core.cancellation import check, shielded
from kurma_core.errors import (
    HostError,
    KurmaError,
    PluginNotFoundError,
    PodDamagedError,
    PodNotFoundError,
    StagerError,
)
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.isolator import needs_powers
from kurma_core.models.network import Attachment
from kurma_core.models.pod import LOG_DIRECTORY
from kurma_core.models.summary import MANAGER
from kurma_core.pods import log_places
from kurma_core.pods.network import port_claims
from kurma_core.pods.network.hosts_and_resolv_conf import findable
from kurma_core.pods.prepare import pid_modes, volumes
from kurma_core.pods.prepare.app_settings import pod_setup, secret_values
from kurma_core.pods.record.document import cgroup_of
from kurma_core.pods.record.pod_directory import unwritable
from kurma_core.pods.run import pod_limits

if TYPE_CHECKING:
    from kurma_core.hookspecs.pod_setup import PodSetup, SecretSetup
    from kurma_core.hookspecs.stager import RunningStagerHooks, StagerHooks
    from kurma_core.metadata.listening import Listener
    from kurma_core.models.image import RenderedImage
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.services import Services
    from kurma_core.staging.prestarted import PrestartedStager

#: Seconds to wait for a killed process.
_KILL_PATIENCE = 10.0
#: Seconds to wait for a process that survived SIGKILL before: it hangs in the kernel until the kernel releases it.
_QUICK_LOOK = 0.2


class Launch:
    """One start or teardown of a pod; holds what the steps hand to each other.

    :param made: parts of a prestarted pod that exist already: ``cgroup``, ``net``.
    :param waiting: the prestarted stager.
    :param listener: the metadata service's socket.
    :param rendered: the images of apps and volumes, held by the caller; None: they are looked up.
    """

    def __init__(
        self,
        services: Services,
        directory: PodDirectory,
        document: PodDocument,
        attachments: tuple[Attachment, ...] = (),
        stager: RunningStagerHooks | None = None,
        made: Collection[str] = (),
        waiting: PrestartedStager | None = None,
        listener: Listener | None = None,
        rendered: Mapping[str, RenderedImage] | None = None,
    ) -> None:
        self.services = services
        self.directory = directory
        self.document = document
        #: The pod's standard streams; set before :func:`bring_up`.
        self.stdio: Stdio | None = None
        self.attachments = attachments
        self.stager = stager
        self.made = made
        self.waiting = waiting
        self.listener = listener
        self.rendered = rendered
        #: The secrets of the apps with their values, from :func:`bring_up` to the start of the stager.
        self.secrets: Mapping[str, tuple[SecretSetup, ...]] = {}
        #: Kinds of the namespaces that exist already.
        self.kept: Collection[str] = ()
        #: Seconds to wait for a process to die.
        self.patience = _KILL_PATIENCE
        #: Whether teardown gives up the networks whose plugins are not installed any more.
        self.gives_up = False

    def record(self, **changes: Any) -> None:
        self.directory.change_state(**changes)

    def take_listener(self) -> Listener | None:
        """Hands the metadata service's socket over to the caller; None: there is none, or it was taken before."""
        listener, self.listener = self.listener, None
        return listener

    def discard_unused(self) -> None:
        """Ends the prestarted stager and closes the socket, unless steps have taken them over. Repeatable."""
        if (listener := self.take_listener()) is not None:
            listener.close()
        if self.waiting is not None:
            self.waiting.discard()


class Step(Protocol):
    """A start step. ``undo`` succeeds if there is nothing to undo, also when ``do`` was never called."""

    name: str

    def do(self, launch: Launch) -> None: ...
    def undo(self, launch: Launch) -> None: ...


class Volumes:
    """The pod's empty and named volumes."""

    name = "volumes"

    def do(self, launch: Launch) -> None:
        volumes.check_sources(launch.document.manifest.volumes, allow_links=launch.document.volume_links)
        volumes.make_empty(launch.document.manifest, launch.directory.path, launch.document.ids)
        if launch.document.manifest.named_volumes:
            from kurma_core.pods.prepare import named_volumes

            with launch.services.images.keeping():
                named_volumes.make_ready(launch.services, launch.document, lambda: _rendered(launch))
        launch.services.api_changed(launch.document, launch.directory.path)

    def undo(self, launch: Launch) -> None:
        # Empty volumes stay until `kurma rm`, so that their files can be read after the pod's end; named ones stay
        # until `kurma volume rm`.
        pass


class Cgroup:
    """The pod's own cgroup, on every hierarchy."""

    name = "cgroup"

    def do(self, launch: Launch) -> None:
        try:
            if self.name not in launch.made:
                CgroupTree(launch.document.cgroup).create()
            if pod_limits.requested_memory(launch.document):
                pod_limits.keep_memory(launch.document)
        except OSError as error:
            raise _host_error("make the cgroup", launch, error) from None

    def undo(self, launch: Launch) -> None:
        tree = CgroupTree(launch.document.cgroup)
        try:
            launch.discard_unused()
            tree.kill(launch.patience)
            tree.remove()
            if launch.document.cgroup_parent is not None:
                # The former cgroup of a prestarted stager.
                before = CgroupTree(cgroup_of(launch.document.uuid))
                before.kill(launch.patience)
                before.remove()
            if pod_limits.requested_memory(launch.document):
                pod_limits.keep_memory(launch.document)
        except OSError as error:
            raise _host_error("remove the cgroup", launch, error) from None


class UserNamespace:
    """The pod's user namespace, pinned by a mount; made before the other namespaces, which it owns."""

    name = "user-namespace"

    def do(self, launch: Launch) -> None:
        path, ids = launch.document.user_namespace, launch.document.ids
        if ids is None:
            return
        from kurma_core.spawn_plan import UserMap

        stagers, name = launch.services.stagers, launch.document.stager
        if not stagers.get(name).features().user_namespaces:
            raise StagerError(
                f"stager {name} does not support user namespaces",
                hint="run the pod with --userns none, or with another stager",
            )
        managed = launch.document.manifest.annotation(MANAGER) is not None
        launch.services.id_ranges.hold(launch.document.uuid, ids, managed=managed)
        if path is None:
            return
        whole = ((0, ids.first, ids.count),)
        launch.services.spawner.make_user_namespace(path, UserMap(whole, whole))
        launch.services.joined.made(launch.document.uuid, "user")

    def undo(self, launch: Launch) -> None:
        # The ids stay reserved for the pod: they own the files that it wrote, on volumes for example.
        _release(launch, "user")


class NetworkNamespace:
    """The pod's network namespace, pinned by a mount."""

    name = "network-namespace"

    def do(self, launch: Launch) -> None:
        path = launch.document.network_namespace
        if path is not None and "net" not in launch.kept:
            launch.services.spawner.make_namespace(path, userns=launch.document.user_namespace)
            launch.services.joined.made(launch.document.uuid, "net")

    def undo(self, launch: Launch) -> None:
        _release(launch, "net")


class Networks:
    """Joins the networks, in order; leaves them in reverse."""

    name = "networks"

    def do(self, launch: Launch) -> None:
        document = launch.document
        if document.network_namespace is None:
            return
        launch.attachments = launch.services.networking.add_all(
            document.attachments,
            pod=document.uuid,
            pod_name=document.name,
            namespace=document.network_namespace,
            # Stopping a pod that starts records the cause, and waits for this process.
            wanted=lambda: not launch.directory.read_state().cause,
        )
        if findable(launch.attachments):
            try:
                launch.services.names.join(document, launch.attachments)
            except OSError as error:
                raise _host_error("make its name known", launch, error) from None
        if pod_limits.traffic_limits(document):
            # Needs no undo: the kernel removes the limits with the namespace.
            pod_limits.hold_traffic(document, launch.services.traffic_limiters(), launch.services.note)

    def undo(self, launch: Launch) -> None:
        document = launch.document
        if document.network_namespace is None:
            return
        try:
            # Before the addresses are freed: another pod may get them at once.
            if findable(document.attachments):
                launch.services.names.leave(document.uuid, document.attachments)
        except OSError as error:
            failure = _host_error("take its name back", launch, error)
            if not unwritable(failure):  # not needed then: no name resolves to a pod whose namespace is gone
                raise failure from None
        finally:
            launch.services.networking.delete_all(
                document.attachments,
                pod=document.uuid,
                pod_name=document.name,
                namespace=document.network_namespace,
                give_up=launch.gives_up,
            )


class Metadata:
    """The pod's metadata service, which this process serves. Its address is removed with the network namespace."""

    name = "metadata"

    def do(self, launch: Launch) -> None:
        from kurma_core.pods.run import pod_metadata

        # A thread makes the socket while the next steps run; the stager's step waits for it.
        listener = launch.take_listener()
        pod_metadata.begin(launch.services, launch.directory, launch.document, listener)

    def undo(self, launch: Launch) -> None:
        launch.services.forget_metadata(launch.document.uuid)


class Stager:
    """Prepares and starts the stager, and records its identity."""

    name = "stager"

    def do(self, launch: Launch) -> None:
        from kurma_core.pods.run import pod_metadata

        driver = launch.services.stagers.get(launch.document.stager)
        if needs_powers(launch.document.plans.values(), launch.document.pod_plan):
            _need_powers(driver, launch.document.stager)
        _make_log_directory(launch, driver)
        _check_kept_root(driver, launch)
        pid_modes.check_stager(driver, launch.document.stager, launch.document.manifest.apps)
        assert launch.stdio is not None
        # Garbage collection must remove neither the stager's image nor the apps' layers before the record names
        # them.
        with launch.services.images.keeping():
            rendered = _rendered(launch)
            launch.rendered = None  # saves memory while the pod runs
            url, told = pod_metadata.settled(launch.services, launch.directory)
            setup = pod_setup(
                launch.services,
                launch.document,
                launch.directory.path,
                rendered,
                launch.attachments or launch.document.attachments,
                url,
                launch.secrets,
                launch.services.note,
            )
            _remove_kept_roots(launch)
            driver.prepare(setup)
            launch.stager = _handed_over(launch, setup) or driver.start(setup, launch.stdio)
            launch.secrets = {}
            launch.record(
                stager=dict(launch.stager.identity),
                stager_version=VERSION,
                layers=_in_use(rendered),
                metadata=told,
                attachments=launch.attachments,
            )

    def undo(self, launch: Launch) -> None:
        driver = launch.services.stagers.of_pod(launch.document)
        try:
            driver.cleanup(launch.directory.path, launch.document.cgroup)
        except OSError as error:
            raise _host_error("end the stager", launch, error) from None
        if launch.stager is not None:
            # The stager may have left the pod's cgroup, and has to be reaped if it is our child.
            launch.stager.signal(signal.SIGKILL)
            launch.stager.wait(launch.patience)
        if not launch.document.keeps_root:
            # A failure is ignored: `kurma rm` reports what it cannot remove, and nothing else needs the space.
            with contextlib.suppress(OSError):
                remove_layers(launch.directory.path)


def _handed_over(launch: Launch, setup: PodSetup) -> RunningStagerHooks | None:
    """The prestarted stager, after it has taken the pod; None: there is none, or it cannot be used."""
    engine = None if launch.waiting is None else launch.services.stagers.engine(launch.document.stager)
    if launch.waiting is None or engine is None:
        return None
    try:
        return engine.hand_over(launch.waiting, setup)
    except (StagerError, HostError):
        return None  # the stager that is started instead reports the problem


def _make_log_directory(launch: Launch, driver: StagerHooks) -> None:
    """Makes the directory of the host for the pod's logs, if it is missing; it stays there. Later runs of the pod
    find it.

    :raises StagerError: the stager does not write logs there. :raises HostError: it cannot be made.
    """
    manifest = launch.document.manifest
    log_places.check_stager(driver, launch.document.stager, manifest)
    directory = manifest.annotation(LOG_DIRECTORY)
    if directory is None:
        return
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
    except OSError as error:
        raise _host_error("make the log directory", launch, error) from None


def _need_powers(driver: StagerHooks, name: str) -> None:
    """:raises StagerError: the stager does not support that apps get devices, namespaces or powers of the host."""
    if not driver.features().host_powers:
        raise StagerError(
            f"stager {name} cannot give apps devices, namespaces or powers of the host, which the pod requests",
            hint="run the pod with another stager",
        )


def _remove_kept_roots(launch: Launch) -> None:
    """Removes the roots that were kept of the pod's last run, since every execution starts from a clean copy. A
    prestarted pod has had no run, and its stager has made the directory already."""
    if launch.waiting is not None or not launch.document.keeps_root:
        return
    try:
        remove_layers(launch.directory.path)
    except OSError as error:
        raise _host_error("remove the kept roots", launch, error) from None


def _check_kept_root(driver: StagerHooks, launch: Launch) -> None:
    """:raises StagerError: the pod keeps its apps' roots, and this stager does not write them where Kurma finds
    them."""
    if launch.document.keeps_root and not driver.features().kept_roots:
        raise StagerError(
            f"stager {launch.document.stager} does not keep the roots of apps",
            hint="run the pod with another stager, or without --keep-root",
        )


#: In the order in which they are done.
STEPS: tuple[Step, ...] = (
    Volumes(),
    Cgroup(),
    UserNamespace(),
    NetworkNamespace(),
    Metadata(),
    Networks(),
    Stager(),
)


def ends_now(launch: Launch) -> None:
    """Kills the remaining processes of a pod whose teardown has failed before.

    :raises HostError: they still hang in the kernel. The wait is short, since any command that sees the pod calls
        this.
    """
    try:
        CgroupTree(launch.document.cgroup).kill(_QUICK_LOOK)
    except OSError as error:
        raise _host_error("end its processes", launch, error) from None


#: Recorded before the first step is done.
STEP_NAMES = tuple([step.name for step in STEPS])


def claim_places(launch: Launch) -> None:
    """Records which namespaces will be pinned, and clears the paths of their pins. Must be called before the steps
    are recorded: from then on, their undo releases whatever is pinned at these paths.

    :raises HostError: something else is at such a path.
    """
    document = launch.document
    kinds = {"user": document.user_namespace, "net": document.network_namespace}
    if any(kinds.values()):
        wanted = [kind for kind, path in kinds.items() if path is not None]
        launch.kept = launch.services.joined.begin(
            document.uuid,
            document.name,
            document.attachments,
            wanted,
            kept=[kind for kind in wanted if kind in launch.made],
        )


def bring_up(launch: Launch) -> None:
    """Does all steps; their names are on record already. After a failure the caller must call
    :func:`tear_down`."""
    document = launch.document
    launch.secrets = secret_values(document.manifest.apps, document.ids, launch.services.config.state_dir)
    for step in STEPS:
        check()
        step.do(launch)


def tear_down(launch: Launch) -> tuple[tuple[str, ...], list[KurmaError]]:
    """Undoes every step on record, in reverse; after a failure it goes on with the next. The steps stay on record
    meanwhile: if this process dies, the next teardown repeats them.

    :returns: the steps that are still to be undone, for the record; and the failures.
    """
    try:
        on_record = launch.directory.read_state().steps
    except (PodNotFoundError, PodDamagedError, HostError):
        # The record was removed or damaged, or cannot be read. So all steps are undone: undoing one that was not
        # done does no harm.
        on_record = STEP_NAMES
    left: list[str] = []
    failures: list[KurmaError] = []
    for step in reversed(STEPS):
        if step.name not in on_record:
            continue
        try:
            with shielded():
                step.undo(launch)
        except KurmaError as error:
            failures.append(error)
            left.append(step.name)
            # A process that has survived SIGKILL for that long is not waited for again.
            launch.patience = _QUICK_LOOK
    if not failures:
        if port_claims.published(launch.document.attachments):
            port_claims.let_go(launch.directory)
        launch.services.joined.forget(launch.document.uuid)
    return tuple([name for name in STEP_NAMES if name in left]), failures


def incomplete(launch: Launch, failures: list[KurmaError]) -> KurmaError:
    """The error for a pod of which :func:`tear_down` could not undo all steps: a
    :class:`~kurma_core.errors.PluginNotFoundError` if it lacks nothing but a plugin."""
    lacks = all(isinstance(one, PluginNotFoundError) for one in failures)
    message, first = f"pod {launch.document.uuid}: {not_complete(launch, failures)}", failures[0]
    return (PluginNotFoundError if lacks else KurmaError)(message, hint=first.hint, pod=launch.document.uuid)


def not_complete(launch: Launch, failures: list[KurmaError]) -> str:
    """The reason to record for a pod of which :func:`tear_down` could not undo all steps. Without the pod's name,
    which the reader sees beside it."""
    why = failures[0].message.removeprefix(f"pod {launch.document.uuid}: ")
    return f"teardown is not complete: {why}"


def _rendered(launch: Launch) -> Mapping[str, RenderedImage]:
    """The rendered image of each app and image volume: those that the caller holds, else from the cache and
    checked."""
    if launch.rendered is not None:
        return launch.rendered
    images, document = launch.services.images, launch.document
    found = {
        app: images.render(image, document.renderer, verify=document.verify, insecure=document.insecure)
        for app, image in document.images.items()
    }
    return {**found, **volumes.rendered_of(images, document)}


def _in_use(rendered: Mapping[str, RenderedImage]) -> dict[str, list[str]]:
    """By app, IDs of its images and trees. They are recorded because a dependency that is found by its name may
    later resolve to another image."""
    return {name: sorted({*app.images, *app.manifests}) for name, app in rendered.items()}


def _release(launch: Launch, kind: str) -> None:
    """Unpins one of the pod's namespaces.

    :param kind: ``net`` or ``user``.
    """
    try:
        launch.services.joined.release(launch.document.uuid, kind)
    except OSError as error:
        raise _host_error(f"remove the {'network' if kind == 'net' else kind} namespace", launch, error) from None


def _host_error(what: str, launch: Launch, error: OSError) -> HostError:
    # A path that was used relative to a descriptor is in the state directory's file system, as the pod's directory
    # is.
    uuid, place = launch.document.uuid, launch.directory.path
    return HostError.of(f"pod {uuid}: cannot {what}", error, beneath=place, pod=uuid)


def remove_layers(directory: str) -> None:
    """Removes what the apps of a pod that does not run have changed in their root file systems. Every execution
    starts from a clean copy, and a pod that has filled the disk frees it by its end. Logs and status stay.

    :param directory: the pod's. :raises OSError: they cannot be removed.
    """
    from kurma_core.linux.beneath import remove_tree

    try:
        fd = os.open(f"{directory}/pod", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        remove_tree(fd, "apps")
    finally:
        os.close(fd)
