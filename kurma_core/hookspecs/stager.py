"""The contract of stagers: a way of running the inside of a pod."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kurma_core.errors import StagerError
    from kurma_core.hookspecs.driver import Json
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.models.pod import AppStatus
    from kurma_core.models.streams import Stdio


class RunningStager(Protocol):
    """A started stager. ``identity`` is enough, as JSON on disk, to find the process again from elsewhere."""

    @property
    def pid(self) -> int: ...
    @property
    def identity(self) -> Mapping[str, Json]: ...

    def wait_running(self, timeout: float) -> bool:
        """Waits until the pod runs. True: it runs. False: the stager has ended with status 0: the pod ran and is
        over.

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
    that is true, as does a :class:`StagerImageSource`; with any other, they are reported as ignored. Such a
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
    """What a :class:`Stager` may have besides: pods whose apps come and go while they run. All but
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
    the Kurma Stager Specification."""

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
        :attr:`DriverContext.host_image`, which says whether the image is to be trusted.

        :param name: the stager's, for messages.
        """
        ...
