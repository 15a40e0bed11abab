"""Every contract between the core and its plugins, in one place.

A plugin is a module named by an entry point of one of six groups. It implements the one hook of its kind with
:data:`hookimpl`; the hook takes nothing and returns a :class:`Driver`: a name, the options that its section of
``kurma.yml`` may hold, and a factory. The core makes each driver at most once per process, when it is first
needed, and calls drivers one at a time, in configured order, undoing in reverse. Observers are the one broadcast.

====================  =========================  =========================================================
group                 hook                       what the factory makes
====================  =========================  =========================================================
``kurma.fetchers``    ``kurma_fetcher``          :class:`Fetcher`; the entry's name is a locator scheme
``kurma.renderers``   ``kurma_renderer``         :class:`Renderer`
``kurma.stagers``     ``kurma_stager``           :class:`Stager`, :class:`StagerImageSource` or
                                                 :class:`StagerOfImages`
``kurma.networks``    ``kurma_network``          :class:`Network`
``kurma.isolators``   ``kurma_isolator``         :class:`Isolator`
``kurma.observers``   ``kurma_pod_event``        (the hook itself is the observer)
====================  =========================  =========================================================

A plugin that cannot work on this host raises :class:`kurma_core.errors.PluginSkipped` from its hook or factory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Protocol, TypeVar

from kurma_core.models.stdio import Stdio as Stdio
from kurma_core.value import field, frozen

if TYPE_CHECKING:
    import pluggy

    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import PodManifest
    from kurma_core.errors import StagerError
    from kurma_core.linux.process import ProcessIdentity
    from kurma_core.models.image import RenderedLayer
    from kurma_core.models.isolator import IsolatorPlan
    from kurma_core.models.network import Attachment, NetworkResult
    from kurma_core.models.pod import AppStatus, PodEvent
    from kurma_core.models.userns import IdRange

    hookimpl: pluggy.HookimplMarker

PROJECT = "kurma"

GROUPS: Mapping[str, str] = {
    "kurma.fetchers": "kurma_fetcher",
    "kurma.renderers": "kurma_renderer",
    "kurma.stagers": "kurma_stager",
    "kurma.networks": "kurma_network",
    "kurma.isolators": "kurma_isolator",
    "kurma.observers": "kurma_pod_event",
}


def __getattr__(name: str) -> object:
    """``hookimpl``, for plugins. Whoever only passes these values on has no use for pluggy, which takes as long to
    load as the interpreter."""
    if name != "hookimpl":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pluggy

    found = globals()[name] = pluggy.HookimplMarker(PROJECT)
    return found


Json = Any
D = TypeVar("D", covariant=True)


# --- what every kind shares ------------------------------------------------------------------------------------


@frozen
class Option:
    """One key of a driver's ``config`` in ``kurma.yml``.

    :param type: ``str``, ``int``, ``float``, ``bool``, ``list`` or ``dict``; a value of another type is an error.
    :param default: what the driver sees when the key is absent.
    :param least: of a number, as ``most``; None: any. A ``float`` is never infinite, nor what is no number.
    :param choices: the values that are allowed; empty: all of that type.
    """

    name: str
    type: type
    default: Json
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[Json, ...] = ()


@frozen
class HostTree:
    """An image that was verified to run with host privilege (K5).

    :param id: ``sha512-…``. :param path: its root filesystem, extracted: to be read, and never written.
    """

    id: str
    path: str
    manifest: ImageManifest


@frozen
class HostProgram:
    """A program to be run on the host's own root, with all of its power.

    :param argv: the program's path, absolute, and its arguments.
    :param environment: all of it; nothing is inherited.
    :param cgroup: in which it is born, relative to each hierarchy's root; made already. Empty: the caller's.
    :param fds: number in the program → descriptor of the caller. 0, 1 and 2 are ``/dev/null`` unless given; every
        other one is closed.
    :param parent_death_signal: sent to it when this process ends, however it does; None: it goes on.
    :param new_session: it leads a session of its own, so that the caller's terminal is not its own.
    :param controlling_tty: descriptor 0 is the terminal of that session.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    cgroup: str = ""
    fds: Mapping[int, int] = field(default_factory=dict)
    parent_death_signal: int | None = None
    new_session: bool = False
    controlling_tty: bool = False


class Started(Protocol):
    """A started program, a child of the caller's. ``pidfd`` holds it; the caller closes it."""

    @property
    def pid(self) -> int: ...
    @property
    def identity(self) -> ProcessIdentity: ...
    @property
    def pidfd(self) -> int: ...


def _no_programs(program: HostProgram) -> Started:
    from kurma_core.errors import HostError

    raise HostError(f"no programs can be started here: {program.argv[0]}")


def _no_images(locator: str) -> HostTree:
    from kurma_core.errors import HostError

    raise HostError(f"no images can be had here: {locator}")


@frozen
class DriverContext:
    """What a driver is made with.

    :param config: the admin's section for it, checked against its options, defaults filled in.
    :param state_dir: a directory of its own under the state directory, for what must outlive the process; not
        yet made (the driver makes it, mode 0700, when it writes).
    :param registries: the ``registries`` section of ``kurma.yml``: ``insecure`` (list of host[:port]),
        ``mirrors`` (registry name → list of host[:port]).
    :param auth_dir: directory of credentials (``auth.d``), which may not exist.
    :param note: tell the user something in one line, on standard error.
    :param host_image: finds an image by its locator, fetches it if need be, and verifies it as one that runs with
        host privilege (K5); raises TrustError, FetchError, StoreError. Not for fetchers and renderers.
    :param start_program: starts a program on the host, with threads about or without; returns once it has been
        executed; raises CommandNotFoundError, CommandNotExecutableError, HostError.
    :param daemon: this process serves many commands: what is done once per start of the daemon is done anew.
    """

    config: Mapping[str, Json]
    state_dir: str
    registries: Mapping[str, Json] = field(default_factory=dict)
    auth_dir: str = "/etc/kurma/auth.d"
    note: Callable[[str], None] = print
    host_image: Callable[[str], HostTree] = _no_images
    daemon: bool = False
    start_program: Callable[[HostProgram], Started] = _no_programs


@frozen
class Driver(Generic[D]):
    """What a hook returns: how to make the driver, and what it may be configured with.

    :param create: called at most once per process, when the driver is first needed.
    :param options: the keys of its section; unknown keys are refused, naming the nearest known one.
    :param aliases: further names that configuration may use for it (a network's ``aci`` names, W1).
    :param runs_images: it serves every network whose ``aci`` no plugin answers to: the locator of an image, which
        stands as ``aci`` in the configuration that the driver gets (W1, W2). One plugin of a host does.
    """

    create: Callable[[DriverContext], D]
    options: tuple[Option, ...] = ()
    aliases: tuple[str, ...] = ()
    runs_images: bool = False


class Progress(Protocol):
    """Told how long work goes on. All calls are cheap; ``total`` is in bytes, None when unknown. What is skipped
    is done, but was there from an earlier attempt: it says nothing of the speed."""

    def start(self, what: str, total: int | None) -> None: ...
    def skip(self, count: int) -> None: ...
    def advance(self, count: int) -> None: ...
    def finish(self) -> None: ...


# --- fetchers --------------------------------------------------------------------------------------------------


class RemoteBlob(Protocol):
    """Bytes somewhere else that can be read from any offset on.

    ``key`` names the content well enough to resume by (a digest, or the URL with its validator); None: not
    resumable. ``size`` in bytes, None when unknown. ``digest`` (``sha256:…``), when set, is checked by the core.
    """

    @property
    def key(self) -> str | None: ...
    @property
    def size(self) -> int | None: ...
    @property
    def digest(self) -> str | None: ...

    def open(self, offset: int = 0) -> BinaryIO:
        """A reader from ``offset`` on. It retries broken connections itself, as far as that is sensible. Its
        ``close`` may be called while another thread waits in its ``read``, to end that: so an operation that is
        cancelled ends (:mod:`kurma_core.cancellation`).

        :raises FetchError: in one of its kinds, from here and from ``read``.
        """
        ...


@frozen
class DetachedSignature:
    """An OpenPGP signature beside an archive (K3).

    :param data: armored or binary.
    :param over: ``archive``: the bytes as shipped (``.aci.asc``); ``tar``: the uncompressed tar (the early
        ``.sig``).
    :param url: where it was found, for people.
    """

    data: bytes
    over: str = "archive"
    url: str | None = None


@frozen
class PublicKey:
    """A public key (or several in one file) that a name's owner publishes.

    :param data: armored or binary, as it came; unverified. :param url: where it was found.
    """

    data: bytes
    url: str


@frozen
class RemoteArchive:
    """An App Container image archive, as shipped.

    :param transport: ``file``, ``http`` or ``https``: decides the trust policy (K4), unless the locator is a name.
    :param signature: the detached signature's reader, called only when one is wanted; returns None when the
        source has none.
    :param max_age: seconds for which the source calls its answer fresh; 0: it must be asked each time.
    """

    locator: str
    url: str
    transport: str
    blob: RemoteBlob
    signature: Callable[[], DetachedSignature | None] = field(default=lambda: None)
    max_age: int = 0


@frozen
class RemoteLayer:
    """One layer of a Docker or OCI image.

    :param diff_id: ``sha256:…`` over the uncompressed tar: what it is stored under, and checked against.
    :param compression: ``""``, ``gzip`` or ``zstd`` as announced; what counts is what the bytes say.
    :param others: the same bytes at other places (mirrors), asked in order where the one before fails or gives
        something else.
    """

    diff_id: str
    blob: RemoteBlob
    compression: str = ""
    others: tuple[RemoteBlob, ...] = ()


@frozen
class RemoteLayers:
    """A Docker or OCI image, resolved for one platform.

    :param manifest: the App Container image manifest that it becomes (R3).
    :param layers: lowest first.
    :param digest: ``sha256:…`` of the registry's manifest: the content digest that vouches for it.
    :param transport: ``https`` (a registry over TLS), ``http`` (an insecure one) or ``file``.
    :param pinned: the digest was given by the user.
    """

    locator: str
    url: str
    transport: str
    manifest: ImageManifest
    layers: tuple[RemoteLayer, ...]
    digest: str
    pinned: bool = False


@frozen
class FetchRequest:
    """:param os: and ``arch``: the platform wanted, in App Container terms.
    :param insecure: relaxations in force for this run: ``image``, ``tls``, ``http``, ``pubkey``.
    :param known: the blob's ``key`` when the locator was last resolved, if what it gave is there still: a fetcher
        may ask its source just whether that has changed. A blob with that key again is not read.
    """

    os: str
    arch: str
    insecure: frozenset[str] = frozenset()
    known: str | None = None


class Fetcher(Protocol):
    """Turns a locator of its scheme into something that the core can read. It stores and verifies nothing.

    ``resolve``, ``RemoteArchive.signature`` and ``RemoteBlob.open`` are called in threads of their own, in the
    operation of who asks. When that is cancelled, what waits inside of ``cancellation.current().waking(…)`` is
    woken; a call that knows nothing of it is left to itself after :data:`kurma_core.cancellation.GRACE` seconds.
    """

    def resolve(self, locator: str, request: FetchRequest) -> RemoteArchive | RemoteLayers:
        """Finds the image. May talk to the network; reads no image bytes.

        :param locator: whole, scheme included (``docker://…``); a bare path comes as ``file:///…``.
        :raises FetchError: in one of its kinds.
        :raises UsageError: the locator is malformed.
        """
        ...


class KeyFinder(Protocol):
    """What the fetcher of names (scheme ``appc``) can do besides: find the keys that a name's owner publishes."""

    def public_keys(self, name: str, request: FetchRequest) -> tuple[PublicKey, ...]:
        """The keys published for images whose names begin with ``name`` (``ac-discovery-pubkeys``; K2, D2).

        :returns: nothing is verified or stored; empty: none are published.
        :raises FetchError: in one of its kinds.
        """
        ...


# --- renderers -------------------------------------------------------------------------------------------------


@frozen
class ImageLayer:
    """One extracted layer in the store: a directory, and what it takes away from the layers below it.

    :param path: of the directory; read-only by agreement: never written, hard-linked freely.
    :param removed: paths (relative, no leading slash) that it whites out.
    :param opaque: directories whose lower content it hides.
    :param implied: directories ("" is its root) that its archive did not name, only what lies in them: where a
        layer below has such a directory, that one's owner, mode, times and attributes stay.
    """

    key: str
    path: str
    removed: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


@frozen
class ImageNode:
    """One image of a dependency graph (a tree: a shared dependency stands at each place where it occurs).

    :param layers: its own, lowest first.
    :param dependencies: in listed order; each is applied before this image.
    :param root: where in the image above it its tree is placed (early documents); "/" otherwise.
    """

    id: str
    manifest: ImageManifest
    layers: tuple[ImageLayer, ...]
    dependencies: tuple[ImageNode, ...] = ()
    root: str = "/"


class RenderCache(Protocol):
    """The store's cache of rendered trees."""

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        """The tree cached under ``key``; made, once and atomically, by ``build(empty_directory)``.

        :param key: any text that says wholly what makes the tree; its ID is a digest over it.
        """
        ...


class Renderer(Protocol):
    """Turns an image graph into ordered, read-only, cached directories (N4)."""

    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        """Top first. A plain image's layer keeps the image's own ID.

        :raises RenderError: the graph cannot be rendered.
        """
        ...


# --- stagers ---------------------------------------------------------------------------------------------------


@frozen
class MountSetup:
    """Where one volume stands in one app. ``path`` is absolute and normal; ``seed``: if the volume is empty it
    starts with what the app's image has at that path (P5)."""

    volume: str
    path: str
    read_only: bool
    seed: bool = False


@frozen
class AppSetup:
    """One app of a pod, as a stager gets it.

    :param layers: its rootfs, top first.
    :param mounts: its volumes, in the order in which they are to be mounted.
    :param environment: added by Kurma for this run (metadata URL, ``-e``), in order, over the manifest's.
    :param interactive: the stager's own standard input belongs to this app.
    :param stdin_open: its standard input stays open for whoever attaches.
    :param terminal: it gets a terminal, which is its standard input, output and error (H8).
    :param make_working_directory: a working directory that the image lacks is made, as for Docker's images.
    :param stop_signal: number of the signal that asks the app to end.
    :param replace_files: of ``hosts``, ``hostname`` and ``resolv.conf`` below ``/etc`` those in which Kurma's
        content takes the place of the image's. Any other that the image has stays, and its ``hosts`` gets the
        pod's own name.
    """

    name: str
    layers: tuple[RenderedLayer, ...]
    mounts: tuple[MountSetup, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    interactive: bool = False
    make_working_directory: bool = False
    stop_signal: int = 15
    stdin_open: bool = False
    terminal: bool = False
    replace_files: tuple[str, ...] = ()


@frozen
class VolumeSetup:
    """One volume of a pod: ``source`` is a path of the host (for an empty volume: in the pod's directory).

    :param tmpfs: it is kept in memory: a new tmpfs with these options, which has no source. None: it is not.

    :param idmap: with a user namespace, its owners are inside as they are outside. An empty volume needs no map:
        what it holds belongs to ids of the namespace.
    """

    name: str
    source: str
    read_only: bool
    recursive: bool = True
    idmap: bool = False
    tmpfs: Mapping[str, str] | None = None


@frozen
class UserNamespace:
    """A pod's user namespace: where it is pinned on the host, and which of the host's ids it has (H9). Of a driver
    with ``joins_networks``, its stager makes it, and there is no ``path``."""

    path: str
    ids: IdRange


@frozen
class PodSetup:
    """Everything that a stager driver needs to know of a pod, whatever its design.

    :param directory: the pod's directory on the host. The driver may keep files under ``directory/stager``;
        ``directory/pod`` is what the stager itself writes (G2).
    :param manifest: reified: every app has an image ID, every mount point a volume.
    :param images: image manifests as JSON values, by layer ID.
    :param network_namespace: path of the pod's; None: the host's.
    :param cgroup: the pod's cgroup, relative to each hierarchy's root, made and empty.
    :param plans: the isolator plan per app; ``pod_plan`` the pod's.
    :param config: the admin's section for this stager.
    :param dns: ``nameservers``, ``search``, ``options``: lists of strings; None: the app keeps its own file.
    :param hosts: all lines of ``/etc/hosts`` that are the pod's own, localhost among them: (address, names).
    :param names: lines of other pods belong there, too, and change: the core keeps every hosts file in
        ``directory/pod/hosts`` up to date with those of ``.names`` there (docs/stager_protocol.md).
    :param volume_links: volume sources may be, or lead over, symbolic links (V1).
    :param userns: the pod's, which its network namespace belongs to, as all other namespaces of its apps must;
        only for a driver with ``user_namespaces``. None: the host's.
    :param keep: it ends only when it is stopped, whatever apps come and go (G10).
    :param metadata_url: of its metadata service, with the token; in every app's environment as well. None: it has
        none.
    :param attachments: the networks that it is to be joined to, loopback first, for a driver with
        ``joins_networks``, which joins them itself. Empty: the host's.
    :param asked: of ``dns`` and ``hosts`` those that somebody has said something of.
    """

    uuid: str
    name: str
    directory: str
    manifest: PodManifest
    images: Mapping[str, Json]
    apps: tuple[AppSetup, ...]
    volumes: tuple[VolumeSetup, ...]
    network_namespace: str | None
    cgroup: str
    plans: Mapping[str, IsolatorPlan]
    pod_plan: IsolatorPlan
    config: Mapping[str, Json]
    hostname: str
    dns: Mapping[str, tuple[str, ...]] | None = None
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    volume_links: bool = False
    userns: UserNamespace | None = None
    keep: bool = False
    metadata_url: str | None = None
    names: bool = False
    attachments: tuple[Attachment, ...] = ()
    asked: tuple[str, ...] = ()


class RunningStager(Protocol):
    """A started stager. ``identity`` is enough, as JSON on disk, to find the process again from elsewhere."""

    @property
    def pid(self) -> int: ...
    @property
    def identity(self) -> Mapping[str, Json]: ...

    def wait_running(self, timeout: float) -> bool:
        """Waits until the pod runs. True: it runs. False: the stager has ended with status 0: the pod ran and is
        over (G3).

        :param timeout: seconds.
        :raises StagerError: it failed to start, with the last lines of its output, or the time is over.
        """
        ...

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the stager's end: its exit status (128+N for signal N), None where it cannot be known or
        the time is over (then it is still alive)."""
        ...

    def alive(self) -> bool: ...
    def fileno(self) -> int:
        """A descriptor that polls readable once the stager has ended."""
        ...

    def signal(self, number: int) -> None:
        """Sends it a signal; nothing happens if it has ended."""
        ...

    def close(self) -> None: ...


class Stager(Protocol):
    """A way of running the inside of a pod. Two very different designs fit: a program that lives in a root made
    of an image and is called into (the Kurma Stager Specification; the core's own engine), and one that is run
    on the host beside prepared directories (rkt's stage1).

    Life: ``prepare`` once → ``start`` → ``attach_to`` from any process → ``call`` any number of times →
    ``cleanup``, which is repeatable, from any process, also when ``start`` never happened. A stopped pod may be
    started again, from ``prepare`` on.

    A driver that keeps to what plans say of the host's devices and namespaces, and of privileged apps (version 3),
    says so by an attribute ``host_powers`` that is true; with any other, pods that need it are refused.

    A driver that applies :attr:`PodSetup.plans`, and so isolators, says so by an attribute ``applies_isolators``
    that is true, as does a :class:`StagerImageSource`; with any other, they are reported as ignored (X1). Such a
    one may have an attribute ``isolators_in_part``: by name, those that it keeps to in part, and what that is;
    they are reported as modified. Both are attributes of what the hook gives, of a :class:`StagerOfImages` say.

    A driver whose ``status`` tells nothing but what stands in ``pod/status.json`` below the pod's directory,
    whenever that is there, says so by an attribute ``status_file`` that is true: a daemon does not ask it again as
    long as the file is as it was.

    A driver that keeps to :attr:`PodSetup.userns` says so by an attribute ``user_namespaces`` that is true; with
    any other, pods with a user namespace are refused.

    A driver whose stagers join their pods to networks themselves says so by an attribute ``joins_networks`` that
    is true: the core makes no network and no user namespace then, and hands :attr:`PodSetup.attachments` on.

    A driver whose stagers end with the exit code of their pods, whatever it is, says so by an attribute
    ``ends_with_exit_code`` that is true. With any other, a status that is not 0 is the stager's own failure.

    A driver may have an attribute ``default_hostname``, in which ``{uuid}`` stands for the pod's: of pods that are
    given no hostname. With any other, that is the pod's name.
    """

    name: str

    def prepare(self, pod: PodSetup) -> None:
        """Everything that can be done before the pod is started, on files alone."""
        ...

    def start(self, pod: PodSetup, stdio: Stdio) -> RunningStager:
        """Starts it; does not wait for the pod to run.

        :raises StagerError: it could not be started; whatever was made is undone by ``cleanup``.
        """
        ...

    def attach_to(self, directory: str, identity: Mapping[str, Json]) -> RunningStager | None:
        """The running stager of the pod in that directory, found again; None: it has ended."""
        ...

    def status(self, directory: str, running: RunningStager | None) -> Mapping[str, AppStatus]:
        """What is known of the apps, from the records or by asking. Untrusted values are checked here.

        :param running: None: it has ended; then from the records alone.
        """
        ...

    def call(
        self,
        directory: str,
        running: RunningStager,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> int:
        """Runs a call-in (``status``, ``logs``, ``run``, ``attach``) with the given descriptors; blocks until it
        ends and returns its exit code (128+N for signal N).

        :param document: passed on descriptor 3.
        :raises StagerError: the stager has no such call-in, or it broke its protocol.
        """
        ...

    def stop(self, directory: str, running: RunningStager, *, force: bool) -> None:
        """Asks it to end its pod (SIGTERM for most); with ``force``, ends it at once. Does not wait."""
        ...

    def cleanup(self, directory: str, cgroup: str) -> None:
        """Ends whatever is left of it and removes what it and this driver made outside the pod's directory."""
        ...


class StagerOfRemains(Protocol):
    """What a :class:`Stager` may have besides: something of a pod that stays after its end, until the pod is
    removed or started again. As long as there is any, the pod's directory has a file ``stager/remains``, which
    holds the driver's ``name``; so long, the ``image`` of the running stager's ``identity`` stays in the store."""

    def discard(self, directory: str) -> tuple[str, ...]:
        """Frees what is left of the pod in that directory, which has ended or was never started. Repeatable.

        :returns: what the user should know, line by line; it hinders nothing.
        :raises OSError: something cannot be freed; it is tried again.
        """
        ...


class CollectorOfRemains(Protocol):
    """What the driver of a stager plugin may have besides, also a :class:`StagerOfImages`: it finds what it has of
    pods whose own directories are gone, removed by hand, say. ``gc`` asks it."""

    def remains(self) -> Collection[str]:
        """UUIDs of the pods, of any stager of this plugin's, of which there is something.

        :raises OSError: that cannot be told.
        """
        ...

    def discard_gone(self, uuid: str) -> tuple[str, ...] | None:
        """As :meth:`StagerOfRemains.discard`, of a pod that has no directory.

        :returns: None: there was nothing any more.
        :raises BlockingIOError: it runs still.
        """
        ...


class CallInProcess(Protocol):
    """A call-in that has been started."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, 128+N for signal N."""
        ...

    def end(self) -> None:
        """Asks it to end, and waits until it has. May be repeated."""
        ...


class StagerOfTerminals(Protocol):
    """What a :class:`Stager` may have besides: call-ins that go on while their caller does something else. Without
    it, nothing can be typed into an app's terminal from the foreground command of its pod."""

    def begin(
        self,
        directory: str,
        running: RunningStager,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> CallInProcess:
        """As ``call``, without waiting.

        :raises StagerError: the stager has no such call-in.
        """
        ...


class AppChanger(Protocol):
    """What a :class:`Stager` may have besides: pods whose apps come and go while they run (G10). All but
    the first two raise StagerError where the stager refuses, does not answer in time, or breaks its protocol."""

    def app_verbs(self, directory: str) -> frozenset[str]:
        """Of ``add``, ``start``, ``stop`` and ``rm``: what the stager of the running pod in that directory can."""
        ...

    def no_verb(self, directory: str, verb: str) -> StagerError:
        """What people are told who ask for a verb that is not among those."""
        ...

    def add_app(self, pod: PodSetup, running: RunningStager) -> None:
        """The pod gets an app, which is not started. What fails half-way is undone by ``remove_app``.

        :param pod: as it is now, its ``apps`` and its manifest's holding the new one alone.
        """
        ...

    def remove_app(self, directory: str, running: RunningStager, app: str, volumes: tuple[str, ...]) -> None:
        """Takes the app away, which does not run, with its root and its logs. Repeatable, also where it never
        came to be there.

        :param volumes: the pod's that go with it.
        """
        ...

    def start_app(self, directory: str, running: RunningStager, app: str, timeout: float) -> None:
        """Starts it anew, from a clean root; returns once it runs. :param timeout: seconds for that."""
        ...

    def stop_app(self, directory: str, running: RunningStager, app: str, timeout: float | None) -> None:
        """Asks it to end; returns once it has, its post-stop handler included. One that does not run is left.

        :param timeout: seconds until it is ended by force; None: as the stager was told.
        """
        ...


class StagerImageSource(Protocol):
    """A stager that is an image, brought by a plugin: the core builds, signs, verifies, stores and runs it by
    the Kurma Stager Specification (H1)."""

    def fingerprint(self) -> str:
        """Changes whenever the image would: the interpreter's build, the plugin's own files. Cheap: it is asked
        at every run."""
        ...

    def build(self, rootfs: str) -> Mapping[str, Json]:
        """Fills the empty directory and returns the image manifest (JSON value); ``app.exec`` starts it.

        :raises StagerError: the host lacks something.
        """
        ...


class StagerOfExports(Protocol):
    """What a :class:`StagerImageSource` may have besides: its stager as an image for others to run pods with, by a
    contract of theirs (``kurma stager export``).

    :param exports: the formats that there are, by the names that ``--format`` takes.
    """

    exports: Collection[str]

    def export(self, format: str, rootfs: str) -> Mapping[str, Json]:
        """Fills the empty directory and returns the image manifest (JSON value).

        :param format: one of :attr:`exports`.
        :raises StagerError: the host lacks something.
        """
        ...


class StagerOfImages(Protocol):
    """A way of running images as stagers that is not the Kurma Stager Specification, brought by a plugin NAME.
    ``--stager NAME:LOCATOR`` names such an image, or a section of ``stagers`` with ``driver`` and ``image``."""

    def of_image(self, name: str, locator: str) -> Stager:
        """The driver for that image. Nothing is fetched or looked at yet: that is done at each start, by
        :attr:`DriverContext.host_image`, which says whether the image is to be trusted (K5).

        :param name: the stager's, for messages.
        """
        ...


# --- networks --------------------------------------------------------------------------------------------------


@frozen
class AttachmentContext:
    """Arguments of ``add``, ``delete`` and ``check``; always the same three times (W3).

    :param namespace: path of the pod's network namespace; in ``delete`` it may be gone.
    :param interface: name of the interface inside the pod; "" where the network is an image's and is configured
        without one (W2).
    """

    pod: str
    pod_name: str
    namespace: str
    interface: str
    attachment: Attachment


class Network(Protocol):
    """Joins pods to networks of its kind. One driver serves every configured network that names it."""

    def setup(self, config: Mapping[str, Json]) -> None:
        """Before the first ``add`` of a network in a process; checks its configuration. May be called again.

        :raises NetworkError: the network cannot work, and why.
        """
        ...

    def add(self, context: AttachmentContext) -> NetworkResult | None:
        """Joins the pod. None: nothing to tell (loopback). May run at once for different pods.

        :raises NetworkError:
        """
        ...

    def delete(self, context: AttachmentContext) -> None:
        """Undoes ``add``: repeatable, and right after a failed or half-done ``add`` too.

        :raises NetworkError: something is left; it may be called again.
        """
        ...

    def check(self, context: AttachmentContext) -> None:
        """:raises NetworkError: what ``add`` made is not as it was."""
        ...

    def remove(self, config: Mapping[str, Json]) -> None:
        """Takes away what the network shares among pods (a bridge, base chains). Repeatable.

        :raises NetworkError: in use, or it could not be removed.
        """
        ...


class NetworkConfigChecker(Protocol):
    """What a :class:`Network` may have besides: a look at a configuration, for ``config check`` and listings."""

    def check_config(self, config: Mapping[str, Json]) -> None:
        """Looks at the configuration alone: nothing is changed, no program is run, and the host is not asked.

        :raises NetworkError: it is wrong, and why.
        """
        ...


class NetworkDiscovery(Protocol):
    """What a :class:`Network` may have besides: networks of its own, outside Kurma's configuration."""

    def discover(self) -> Mapping[str, Mapping[str, Json]]:
        """Configurations by network's name. Asked when a name is in no configuration, and for listings.

        What is broken is noted, and hides nothing else.
        """
        ...


@frozen
class Leak:
    """Something on the host that a network plugin has made, and that is not as it should be (W12).

    :param kind: ``address``, ``interface``, ``chain``, ``rule``, ``namespace``, ``record`` …
    :param what: for people: `interface kv1a2b3c4d on bridge kurma0`.
    :param why: what is wrong with it: `its pod 146d7cef-… is gone`.
    :param network: whose; "" where that cannot be told. :param pod: UUID; "" where it is no pod's.
    """

    kind: str
    what: str
    why: str
    network: str = ""
    pod: str = ""


class NetworkCare(Protocol):
    """What a :class:`Network` may have besides: looking after what it has on the host (W12)."""

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """What it has made and belongs to no pod, or is missing or damaged. Nothing is changed, and nothing of
        anybody else's is told.

        :param configs: of every network that names this driver now; there may be traces of others.
        :param pods: UUIDs of this state directory's pods that are joined, half so, or about to be: all of them
            were on record before the first ``add``. Ask the kernel and the disk first, and compare then: each
            ``in`` looks at the pods' records anew, as they are at that moment.
        :raises NetworkError: it cannot look.
        """
        ...

    def mend(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Frees or puts right what :meth:`leaks` tells. Repeatable; may run beside ``add`` and ``delete`` of other
        processes: what a pod may have come back for meanwhile is compared and freed under the lock that ``add``
        takes.

        :returns: what is left.
        """
        ...


class NetworkStatus(Protocol):
    """What a :class:`Network` may have besides: a word on whether pods could join now."""

    def status(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: they could not, and why."""
        ...


class TrafficHolder(Protocol):
    """What a :class:`Network` may have besides: a word on limits of traffic. Without it the core holds pods."""

    def limits(self, config: Mapping[str, Json]) -> bool:
        """Whether that network holds a pod to rates itself. Then ``add`` finds the pod's own limits, if there are
        any, among the attachment's capabilities, as CNI's ``bandwidth``, and the core leaves them to it.
        """
        ...


class PortPublisher(Protocol):
    """What a :class:`Network` may have besides: a word on ports. Without it, a network is given a pod's ports."""

    def publishes(self, config: Mapping[str, Json]) -> bool:
        """Whether that network can lead ports of the host into a pod. Of a pod's networks the first that can gets
        the ports."""
        ...


# --- isolators -------------------------------------------------------------------------------------------------


@frozen
class IsolatorHost:
    """What a compiler of isolators must know of the host, and of the pod.

    :param cgroups: version (1 or 2) by controller that is there.
    :param cpus: number of processors online.
    :param userns: the pod has a user namespace.
    :param host_network: the pod is in the host's network.
    :param root: where ``/proc`` and ``/sys`` are, for what else a compiler has to know; it only reads.
    :param pod: name → value of the pod's own isolators, which bound the app's that is compiled.
    :param siblings: name → value of all isolators of the scope that is compiled, defaults among them.
    :param shared: namespaces that the pod shares with the host: of ``ipc``, ``net``, ``pid``, ``user``, ``uts``.
    :param pods: the directory of all pods.
    :param api: a daemon serves the state directory at the moment, whose API apps may be given.
    :param registry_image: the image of the app that is compiled came from a registry (Docker, OCI), and is no App
        Container image: its default capabilities are fewer.
    """

    cgroups: Mapping[str, int]
    cpus: int
    userns: bool = False
    host_network: bool = False
    root: str = "/"
    pod: Mapping[str, Json] = field(default_factory=dict)
    siblings: Mapping[str, Json] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()
    pods: str = ""
    api: bool = False
    registry_image: bool = False


@frozen
class Compiled:
    """What an isolator becomes.

    :param plan: only the fields that it sets; the core merges the plans of all isolators.
    :param outcome: ``enforced``, ``modified`` or ``ignored``; ``note`` says how or why.
    :param amounts: its quantities in base units, for people: ``limit 1610612736 bytes`` of ``{"limit": "1.5Gi"}``.
    :param apps: of a pod's isolator: what it means for each of its apps.
    """

    plan: IsolatorPlan
    outcome: str = "enforced"
    note: str = ""
    amounts: str = ""
    apps: IsolatorPlan | None = None


@frozen
class IsolatorAbout:
    """What an isolator is, for people, and for who must know whose it is.

    :param scopes: ``app``, ``pod`` or both: where it has a meaning.
    :param value: the form of its value, in a few words.
    :param example: a value; what a host makes of it is compiled to be shown.
    """

    scopes: tuple[str, ...]
    value: str
    example: Json


class Isolator(Protocol):
    """Compiles isolators to a plan that any stager can apply; it changes nothing itself.

    It may have besides:

    - ``exclusive``, a tuple of frozensets of names: of each set, one scope may have one isolator (X2, X4);
    - ``defaults``, see :class:`IsolatorWithDefaults`;
    - ``about``, see :class:`IsolatorsTold`;
    - ``powers``, see :class:`GatedIsolator`;
    - ``namespaces``, see :class:`NamespaceIsolator`.
    """

    #: The isolator names that it looks after (``os/linux/oom-score-adj``).
    names: tuple[str, ...]

    def compile(self, name: str, value: Json, scope: str, host: IsolatorHost) -> Compiled:
        """:param scope: ``app`` or ``pod``.
        :raises IsolatorError: the value is wrong, or the isolator has no meaning in that scope.
        """
        ...


class IsolatorWithDefaults(Protocol):
    """What an :class:`Isolator` may have besides: isolators that hold where the manifest has none."""

    def defaults(self, scope: str, names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Json], ...]:
        """Name and value of each. They are compiled and reported as all others; strict mode leaves them alone.

        :param scope: ``app`` or ``pod``.
        :param names: of the isolators that it has.
        """
        ...


class IsolatorsTold(Protocol):
    """What an :class:`Isolator` may have besides: what its isolators are."""

    def about(self, name: str) -> IsolatorAbout:
        """:param name: one of ``names``."""
        ...


@frozen
class Power:
    """Power over the host that an isolator's value asks for; it goes through the gate (X6).

    :param name: what a grant of ``kurma.yml`` calls it: the isolator's name, or ``ISOLATOR=PART`` for one of
        several powers that it can give. A grant of the isolator gives all of them.
    :param namespace: the namespace of the host's that is meant (``pid``), which all apps of the pod come by.
    :param least: a part of it that does, too, where no grant gives the whole.
    """

    name: str
    namespace: str | None = None
    least: str | None = None


class GatedIsolator(Protocol):
    """What an :class:`Isolator` may have besides: values that no image gets unless a grant says so (X6).

    Every value that gives an app more than it has by default is such a value.
    """

    #: Isolators that ask for powers, each with the parts that it knows; None: its parts are open (paths).
    gated: Mapping[str, Collection[str] | None]

    def powers(self, name: str, value: Json, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
        """Returns what the value asks for beyond the default of the image's kind; empty: nothing.

        :param scope: ``app`` or ``pod``.
        :param host: with the isolators that were asked for as ``siblings``, without defaults. What the pod shares
            with the host is not decided yet.
        :raises IsolatorError: the value is wrong.
        """
        ...


class NamespaceIsolator(Protocol):
    """What an :class:`Isolator` may have besides: values that say which namespaces a pod has. The core asks before
    it compiles anything, and tells by :attr:`IsolatorHost.shared` what came of it."""

    def namespaces(self, name: str, value: Json) -> Mapping[str, str]:
        """``host`` or ``private`` by ``ipc``, ``net``, ``pid``, ``user``, ``uts``; of those alone that it names.

        :raises IsolatorError: the value is wrong.
        """
        ...


# --- hooks -----------------------------------------------------------------------------------------------------


class Hooks:
    """The hook specifications. ``docs/plugin_hooks.md`` documents each; a test compares the signatures."""

    def kurma_fetcher(self) -> Driver[Fetcher]:  # type: ignore[empty-body]
        """A source of images, under the locator scheme that is the entry point's name."""

    def kurma_renderer(self) -> Driver[Renderer]:  # type: ignore[empty-body]
        """A way of turning image graphs into directories."""

    def kurma_stager(self) -> Driver[Stager] | Driver[StagerImageSource] | Driver[StagerOfImages]:  # type: ignore[empty-body]
        """A stager."""

    def kurma_network(self) -> Driver[Network]:  # type: ignore[empty-body]
        """A kind of network."""

    def kurma_isolator(self) -> Driver[Isolator]:  # type: ignore[empty-body]
        """A compiler of isolators."""

    def kurma_pod_event(self, event: PodEvent) -> None:
        """Told of every change of a pod's state, after it is on disk. An exception is noted and goes no further;
        it should return quickly, for the pod waits for it."""
