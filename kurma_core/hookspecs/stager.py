"""The contract of stagers: drivers that run the inside of a pod."""

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
    """A started stager. ``identity`` is written to disk as JSON; with it another process finds the stager
    again."""

    @property
    def pid(self) -> int: ...
    @property
    def identity(self) -> Mapping[str, Json]: ...

    def wait_running(self, timeout: float) -> bool:
        """Waits until the pod runs. True: it runs. False: the stager has exited with status 0: the pod ran and has
        ended.

        :param timeout: seconds.
        :raises StagerError: the stager failed to start (with the last lines of its output), or the timeout
            expired.
        """
        ...

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the stager's end and returns its exit status (128+N for signal N). None: the status is
        unknown, or the timeout expired (then the stager is still alive)."""
        ...

    def alive(self) -> bool: ...
    def fileno(self) -> int:
        """A descriptor that polls readable once the stager has ended."""
        ...

    def signal(self, number: int) -> None:
        """Sends the stager a signal; does nothing if it has ended."""
        ...

    def close(self) -> None: ...


class Stager(Protocol):
    """Runs the inside of a pod. The interface fits two very different designs: a program in a root made of an
    image, whose call-ins the core runs (the Kurma Stager Specification; the core's own engine), and a program that
    runs on the host beside prepared directories (rkt's stage1).

    Life: ``prepare`` once → ``start`` → ``attach_to`` from any process → ``call`` any number of times →
    ``cleanup``, which is repeatable, from any process, also when ``start`` never happened. A stopped pod may be
    started again, from ``prepare`` on.

    Optional attributes of the driver:

    - ``host_powers``, true: it applies the parts of plans about the host's devices and namespaces, and about
      privileged apps (version 3). Otherwise the core refuses pods that need them.
    - ``applies_isolators``, true (also of a :class:`StagerImageSource`): it applies :attr:`PodSetup.plans`, and so
      isolators. Otherwise isolators are reported as ignored, except those in ``isolators_in_part``, a mapping from
      the isolator's name to the part that the stager applies: these are reported as modified. Both are attributes
      of the object that the hook's factory makes, for instance of a :class:`StagerOfImages`.
    - ``status_file``, true: its ``status`` returns only the content of ``pod/status.json`` below the pod's
      directory, whenever that file exists. A daemon then calls ``status`` again only after the file has changed.
    - ``user_namespaces``, true: it applies :attr:`PodSetup.userns`. Otherwise pods with a user namespace are
      refused.
    - ``joins_networks``, true: its stagers join their pods to networks themselves. Then the core makes no network
      and no user namespace, and passes :attr:`PodSetup.attachments` on.
    - ``ends_with_exit_code``, true: its stagers exit with the exit code of their pods. Otherwise a status other
      than 0 is a failure of the stager.
    - ``default_hostname``: the host name of pods without one; ``{uuid}`` stands for the pod's UUID. Without the
      attribute it is the pod's name.
    """

    name: str

    def prepare(self, pod: PodSetup) -> None:
        """Does the work that is possible before the start, on files alone."""
        ...

    def start(self, pod: PodSetup, stdio: Stdio) -> RunningStager:
        """Starts the stager; does not wait for the pod to run.

        :raises StagerError: it could not be started; ``cleanup`` undoes the steps that were done.
        """
        ...

    def attach_to(self, directory: str, identity: Mapping[str, Json]) -> RunningStager | None:
        """Finds the running stager of the pod in that directory; None: it has ended."""
        ...

    def status(self, directory: str, running: RunningStager | None) -> Mapping[str, AppStatus]:
        """Returns the apps' statuses, from the records or by asking the stager. Checks untrusted values.

        :param running: None: the stager has ended; then the driver uses the records alone.
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
        """Asks the stager to end its pod (most drivers send SIGTERM); with ``force``, kills it. Does not wait."""
        ...

    def cleanup(self, directory: str, cgroup: str) -> None:
        """Ends the stager's remaining processes, and removes what it and this driver made outside the pod's
        directory."""
        ...


class StagerOfRemains(Protocol):
    """Optional interface of a :class:`Stager`: resources of a pod that stay after its end, until the pod is
    removed or started again. As long as there are any, the file ``stager/remains`` in the pod's directory holds
    the driver's ``name``, and the ``image`` of the running stager's ``identity`` stays in the store."""

    def discard(self, directory: str) -> tuple[str, ...]:
        """Frees the remaining resources of the pod in that directory, which has ended or was never started.
        Repeatable.

        :returns: notes for the user, line by line; they are not errors.
        :raises OSError: a resource cannot be freed; the core will try again.
        """
        ...


class CollectorOfRemains(Protocol):
    """Optional interface of a stager plugin's driver, also of a :class:`StagerOfImages`: finds resources of pods
    whose own directories are gone, for example removed by hand. ``gc`` uses it."""

    def remains(self) -> Collection[str]:
        """Returns the UUIDs of the pods, of any stager of this plugin, that still have resources.

        :raises OSError: they cannot be listed.
        """
        ...

    def discard_gone(self, uuid: str) -> tuple[str, ...] | None:
        """Like :meth:`StagerOfRemains.discard`, for a pod without a directory.

        :returns: None: there was nothing left to free.
        :raises BlockingIOError: the pod still runs.
        """
        ...


class CallInProcess(Protocol):
    """A call-in that has been started."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns its exit code, 128+N for signal N."""
        ...

    def end(self) -> None:
        """Asks it to end, and waits until it has. May be repeated."""
        ...


class StagerOfTerminals(Protocol):
    """Optional interface of a :class:`Stager`: call-ins that run while their caller does other work. Without it,
    the foreground command of a pod cannot pass typed input to an app's terminal."""

    def begin(
        self,
        directory: str,
        running: RunningStager,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None = None,
    ) -> CallInProcess:
        """Like ``call``, but does not wait.

        :raises StagerError: the stager has no such call-in.
        """
        ...


class AppChanger(Protocol):
    """Optional interface of a :class:`Stager`: adds and removes apps of a running pod. All methods but
    the first two raise StagerError if the stager refuses, does not answer in time, or breaks its protocol."""

    def app_verbs(self, directory: str) -> frozenset[str]:
        """Returns those of ``add``, ``start``, ``stop`` and ``rm`` that the stager of the running pod in that
        directory supports."""
        ...

    def no_verb(self, directory: str, verb: str) -> StagerError:
        """Returns the error for a verb that the stager does not support."""
        ...

    def add_app(self, pod: PodSetup, running: RunningStager) -> None:
        """Adds an app to the pod and does not start it. If it fails half-way, ``remove_app`` undoes it.

        :param pod: the pod's current setup, but its ``apps`` and those of its manifest hold only the new app.
        """
        ...

    def remove_app(self, directory: str, running: RunningStager, app: str, volumes: tuple[str, ...]) -> None:
        """Removes an app that does not run, with its root and its logs. Repeatable, also if the app was never
        added completely.

        :param volumes: names of the pod's volumes to remove with it.
        """
        ...

    def start_app(self, directory: str, running: RunningStager, app: str, timeout: float) -> None:
        """Starts the app again from a clean root; returns once it runs. :param timeout: seconds for that."""
        ...

    def stop_app(self, directory: str, running: RunningStager, app: str, timeout: float | None) -> None:
        """Asks the app to end; returns once it has, its post-stop handler included. Does nothing if the app does
        not run.

        :param timeout: seconds until it is killed; None: the stager's own stop timeout.
        """
        ...


class StagerImageSource(Protocol):
    """A stager that is an image made by a plugin: the core builds, signs, verifies, stores and runs it by
    the Kurma Stager Specification."""

    def fingerprint(self) -> str:
        """Returns a text that changes whenever the image would: with the interpreter's build, or the plugin's own
        files. It must be cheap: the core calls it at every run."""
        ...

    def build(self, rootfs: str) -> Mapping[str, Json]:
        """Fills the empty directory and returns the image manifest (JSON value); ``app.exec`` starts it.

        :raises StagerError: the host lacks something.
        """
        ...


class StagerOfExports(Protocol):
    """Optional interface of a :class:`StagerImageSource`: exports its stager as an image with which another
    container engine runs pods (``kurma stager export``).

    :param exports: the supported formats, by the names that ``--format`` takes.
    """

    exports: Collection[str]

    def export(self, format: str, rootfs: str) -> Mapping[str, Json]:
        """Fills the empty directory and returns the image manifest (JSON value).

        :param format: one of :attr:`exports`.
        :raises StagerError: the host lacks something.
        """
        ...


class StagerOfImages(Protocol):
    """Runs images as stagers by another contract than the Kurma Stager Specification; a plugin NAME provides it.
    ``--stager NAME:LOCATOR`` names such an image, or a section of ``stagers`` with ``driver`` and ``image``."""

    def of_image(self, name: str, locator: str) -> Stager:
        """Returns the driver for that image. It does not fetch the image yet: each start fetches and verifies it
        by
        :attr:`DriverContext.host_image`.

        :param name: the stager's, for messages.
        """
        ...
