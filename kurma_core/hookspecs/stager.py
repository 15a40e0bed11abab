"""The contract of stagers: drivers that run the inside of a pod."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from kurma_core.hookspecs import Hooks, hookspec
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kurma_core.errors import StagerError
    from kurma_core.hookspecs.driver import Json
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.models.pod import AppStatus
    from kurma_core.models.streams import Stdio

_WHERE = {"AppStatus": "kurma_core.models.pod", "StagerError": "kurma_core.errors"}


@frozen
class StagerFeatures:
    """What a stager can do. Of a driver with ``of_image``, the core asks for the first two before the image is
    known.

    :param applies_isolators: it applies :attr:`PodSetup.plans`, and so isolators. Otherwise isolators are reported
        as ignored.
    :param isolators_in_part: isolators that a stager applies in part although it applies no plans, each with the
        part that it applies: they are reported as modified.
    :param host_powers: it applies the parts of plans about the host's devices and namespaces, and about privileged
        apps (version 3). Otherwise the core refuses pods that need them.
    :param user_namespaces: it applies :attr:`PodSetup.userns`. Otherwise pods with a user namespace are refused.
    :param joins_networks: its stagers join their pods to networks themselves. Then the core makes no network and
        no user namespace, and passes :attr:`PodSetup.attachments` on.
    :param default_hostname: the host name of pods without one; ``{uuid}`` stands for the pod's UUID. Empty: the
        pod's name.
    :param status_file: its ``status`` returns only the content of ``pod/status.json`` below the pod's directory,
        whenever that file exists. A daemon then calls ``status`` again only after the file has changed.
    :param ends_with_exit_code: its stagers exit with the exit code of their pods. Otherwise a status other than 0
        is a failure of the stager.
    """

    applies_isolators: bool = False
    isolators_in_part: Mapping[str, str] = field(default_factory=dict)
    host_powers: bool = False
    user_namespaces: bool = False
    joins_networks: bool = False
    default_hostname: str = ""
    status_file: bool = False
    ends_with_exit_code: bool = False


class RunningStagerHooks(Hooks):
    """A started stager, as ``start`` and ``attach_to`` return it. ``identity`` is written to disk as JSON; with it
    another process finds the stager again."""

    pid: int
    identity: Mapping[str, Json]

    @hookspec(required=True)
    def wait_running(self, timeout: float) -> bool:
        """Waits until the pod runs. True: it runs. False: the stager has exited with status 0: the pod ran and has
        ended.

        :param timeout: seconds.
        :raises StagerError: the stager failed to start (with the last lines of its output), or the timeout
            expired.
        """

    @hookspec(required=True)
    def wait(self, timeout: float | None) -> int | None:
        """Waits for the stager's end and returns its exit status (128+N for signal N). None: the status is
        unknown, or the timeout expired (then the stager is still alive)."""

    @hookspec(required=True)
    def alive(self) -> bool:
        """Whether it has not ended."""

    @hookspec(required=True)
    def fileno(self) -> int:
        """A descriptor that polls readable once the stager has ended."""

    @hookspec(required=True)
    def signal(self, number: int) -> None:
        """Sends the stager a signal; does nothing if it has ended."""

    @hookspec(required=True)
    def close(self) -> None:
        """Closes the descriptors of this process. The stager runs on."""

    @hookspec
    def has_come_up(self) -> bool:
        """Whether a pod that was recorded as starting runs by now; asked by a kurmad that finds it."""
        return False

    @hookspec
    def wait_reaped(self) -> int | None:
        """Waits until the parent of a stager that has ended knows its exit status, and returns it; None: it is
        unknown. Asked of a stager that another process has started."""
        return None


class CallInHooks(Hooks):
    """A call-in that has been started (:meth:`StagerHooks.begin`)."""

    @hookspec(required=True)
    def wait(self, timeout: float | None) -> int:
        """Waits for its end and returns its exit code, 128+N for signal N."""

    @hookspec(required=True)
    def end(self) -> None:
        """Asks it to end, and waits until it has. May be repeated."""


class AnyStagerHooks(Hooks):
    """Hooks of all three kinds of stagers."""

    @hookspec
    def features(self) -> StagerFeatures:
        """Returns what the stager can do. Without it: nothing of that."""
        return StagerFeatures()

    @hookspec(raises=(OSError,))
    def remains(self) -> Collection[str]:
        """Returns the UUIDs of pods, of any stager of this plugin, that still have resources though their own
        directories are gone, for example removed by hand. ``gc`` uses it.

        :raises OSError: they cannot be listed.
        """
        return ()

    @hookspec(raises=(OSError,))
    def discard_gone(self, uuid: str) -> tuple[str, ...] | None:
        """Like :meth:`StagerHooks.discard`, for a pod without a directory.

        :returns: None: there was nothing left to free.
        :raises BlockingIOError: the pod still runs.
        """
        return None


class StagerHooks(AnyStagerHooks):
    """Runs the inside of a pod. The interface fits two very different designs: a program in a root made of an
    image, whose call-ins the core runs (the Kurma Stager Specification; the core's own engine), and a program that
    runs on the host beside prepared directories (rkt's stage1).

    Life: ``prepare`` once → ``start`` → ``attach_to`` from any process → ``call`` any number of times →
    ``cleanup``, which is repeatable, from any process, also when ``start`` never happened. A stopped pod may be
    started again, from ``prepare`` on.
    """

    name: str

    @hookspec(required=True)
    def prepare(self, pod: PodSetup) -> None:
        """Does the work that is possible before the start, on files alone."""

    @hookspec(required=True)
    def start(self, pod: PodSetup, stdio: Stdio) -> RunningStagerHooks:
        """Starts the stager; does not wait for the pod to run.

        :raises StagerError: it could not be started; ``cleanup`` undoes the steps that were done.
        """

    @hookspec(required=True)
    def attach_to(self, directory: str, identity: Mapping[str, Json]) -> RunningStagerHooks | None:
        """Finds the running stager of the pod in that directory; None: it has ended."""

    @hookspec(required=True)
    def status(self, directory: str, running: RunningStagerHooks | None) -> Mapping[str, AppStatus]:
        """Returns the apps' statuses, from the records or by asking the stager. Checks untrusted values.

        :param running: None: the stager has ended; then the driver uses the records alone.
        """

    @hookspec(required=True)
    def call(
        self,
        directory: str,
        running: RunningStagerHooks,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None,
    ) -> int:
        """Runs a call-in (``status``, ``logs``, ``run``, ``attach``) with the given descriptors; blocks until it
        ends and returns its exit code (128+N for signal N).

        :param document: passed on descriptor 3.
        :raises StagerError: the stager has no such call-in, or it broke its protocol.
        """

    @hookspec(required=True)
    def stop(self, directory: str, running: RunningStagerHooks, force: bool) -> None:
        """Asks the stager to end its pod (most drivers send SIGTERM); with ``force``, kills it. Does not wait."""

    @hookspec(required=True)
    def cleanup(self, directory: str, cgroup: str) -> None:
        """Ends the stager's remaining processes, and removes what it and this driver made outside the pod's
        directory."""

    @hookspec(raises=(OSError,))
    def discard(self, directory: str) -> tuple[str, ...]:
        """Frees resources of a pod that stay after its end, until the pod is removed or started again. The pod in
        that directory has ended or was never started. Repeatable.

        As long as there are any, the file ``stager/remains`` in the pod's directory holds the driver's ``name``,
        and the ``image`` of the running stager's ``identity`` stays in the store.

        :returns: notes for the user, line by line; they are not errors.
        :raises OSError: a resource cannot be freed; the core will try again.
        """
        return ()

    @hookspec
    def begin(
        self,
        directory: str,
        running: RunningStagerHooks,
        verb: str,
        arguments: tuple[str, ...],
        stdio: Stdio,
        document: bytes | None,
    ) -> CallInHooks:
        """Like ``call``, but does not wait. Without it, the foreground command of a pod cannot pass typed input to
        an app's terminal.

        :raises StagerError: the stager has no such call-in.
        """
        from kurma_core.errors import StagerError

        raise StagerError(f"stager {self.name} has no call-ins that run in the background")

    @hookspec
    def app_verbs(self, directory: str) -> frozenset[str]:
        """Returns those of ``add``, ``start``, ``stop`` and ``rm`` that the stager of the running pod in that
        directory supports. Without it: none, and the apps of a running pod do not change. A driver with this hook
        has the next five, too, which raise StagerError if the stager refuses, does not answer in time, or breaks
        its protocol."""
        return frozenset()

    @hookspec
    def no_verb(self, directory: str, verb: str) -> StagerError:
        """Returns the error for a verb that the stager does not support."""
        from kurma_core.errors import StagerError

        return StagerError(f"stager {self.name} cannot {verb} apps of a running pod")

    @hookspec
    def add_app(self, pod: PodSetup, running: RunningStagerHooks) -> None:
        """Adds an app to the pod and does not start it. If it fails half-way, ``remove_app`` undoes it.

        :param pod: the pod's current setup, but its ``apps`` and those of its manifest hold only the new app.
        """

    @hookspec
    def remove_app(self, directory: str, running: RunningStagerHooks, app: str, volumes: tuple[str, ...]) -> None:
        """Removes an app that does not run, with its root and its logs. Repeatable, also if the app was never
        added completely.

        :param volumes: names of the pod's volumes to remove with it.
        """

    @hookspec
    def start_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float) -> None:
        """Starts the app again from a clean root; returns once it runs. :param timeout: seconds for that."""

    @hookspec
    def stop_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float | None) -> None:
        """Asks the app to end; returns once it has, its post-stop handler included. Does nothing if the app does
        not run.

        :param timeout: seconds until it is killed; None: the stager's own stop timeout.
        """


class StagerImageHooks(AnyStagerHooks):
    """A stager that is an image made by a plugin: the core builds, signs, verifies, stores and runs it by the
    Kurma Stager Specification. Optionally it exports its stager as an image with which another container engine
    runs pods (``kurma stager export``)."""

    @hookspec(required=True)
    def fingerprint(self) -> str:
        """Returns a text that changes whenever the image would: with the interpreter's build, or the plugin's own
        files. It must be cheap: the core calls it at every run."""

    @hookspec(required=True)
    def build(self, rootfs: str) -> Mapping[str, Json]:
        """Fills the empty directory and returns the image manifest (JSON value); ``app.exec`` starts it.

        :raises StagerError: the host lacks something.
        """

    @hookspec
    def export_formats(self) -> tuple[str, ...]:
        """Returns the formats that ``export`` supports, by the names that ``--format`` takes."""
        return ()

    @hookspec
    def export(self, format: str, rootfs: str) -> Mapping[str, Json]:
        """Fills the empty directory and returns the image manifest (JSON value).

        :param format: one of :meth:`export_formats`.
        :raises StagerError: the host lacks something.
        """
        from kurma_core.errors import StagerError

        raise StagerError(f"the stager cannot be exported as {format}")


class StagerOfImagesHooks(AnyStagerHooks):
    """Runs images as stagers by another contract than the Kurma Stager Specification; a plugin NAME provides it.
    ``--stager NAME:LOCATOR`` names such an image, or a section of ``stagers`` with ``driver`` and ``image``."""

    @hookspec(required=True)
    def of_image(self, name: str, locator: str) -> StagerHooks:
        """Returns the driver for that image. It does not fetch the image yet: each start fetches and verifies it,
        by :attr:`DriverContext.host_image`.

        :param name: the stager's, for messages.
        """
