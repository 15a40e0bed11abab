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
    from kurma_core.models.isolator import IsolatorPlan
    from kurma_core.models.pod import AppStatus
    from kurma_core.models.streams import Stdio

_WHERE = {
    "AppStatus": "kurma_core.models.pod",
    "IsolatorPlan": "kurma_core.models.isolator",
    "StagerError": "kurma_core.errors",
}


@frozen
class StagerFeatures:
    """Abilities of a stager. Of a driver with ``of_image``, the core asks for the first two before the image is
    known.

    :param applies_isolators: it applies :attr:`PodSetup.plans`, and so isolators. Otherwise isolators are reported
        as ignored.
    :param isolators_in_part: isolators that a stager applies in part although it applies no plans, each with the
        part that it applies: they are reported as modified.
    :param host_powers: it applies the parts of plans about the host's devices and namespaces, and about privileged
        apps (version 3). Otherwise the core refuses pods that need them.
    :param volume_kinds: it mounts volumes of images, volumes whose mounts propagate, volumes with mount options,
        volumes below others, parts of volumes (:attr:`.pod_setup.VolumeSetup.sub_path`), and read-only volumes
        with submounts as the user says. Otherwise the core refuses pods that have such volumes.
    :param user_namespaces: it applies :attr:`PodSetup.userns`. Otherwise pods with a user namespace are refused.
    :param pid_namespaces: it gives apps the PID namespace that their annotation ``kurma.io/pid`` names. Otherwise
        apps that ask for another one than the pod's are refused.
    :param joins_networks: its stagers join their pods to networks themselves. Then the core makes no network and
        no user namespace, and passes :attr:`PodSetup.attachments` on.
    :param default_hostname: the host name of pods without one; ``{uuid}`` stands for the pod's UUID. Empty: the
        pod's name.
    :param status_file: its ``status`` returns only the content of ``pod/status.json`` below the pod's directory,
        whenever that file exists. A daemon then calls ``status`` again only after the file has changed.
    :param log_directories: it applies :attr:`PodSetup.log_directory` and :attr:`AppSetup.log_path`. Otherwise pods
        that ask for these are refused.
    :param secrets: it gives apps :attr:`AppSetup.secrets`, and records no value. Otherwise pods with secrets are
        refused.
    :param kept_roots: it writes the changes of each execution of an app to ``pod/apps/APP/NUMBER/upper`` below the
        pod's directory, with an overlay's ``work`` beside it; without ``work``, ``upper`` is the whole root.
        Otherwise pods that keep their apps' roots are refused.
    :param ends_with_exit_code: its stagers exit with the exit code of their pods. Otherwise a status other than 0
        is a failure of the stager.
    """

    applies_isolators: bool = False
    isolators_in_part: Mapping[str, str] = field(default_factory=dict)
    host_powers: bool = False
    volume_kinds: bool = False
    user_namespaces: bool = False
    pid_namespaces: bool = False
    joins_networks: bool = False
    default_hostname: str = ""
    status_file: bool = False
    log_directories: bool = False
    kept_roots: bool = False
    ends_with_exit_code: bool = False
    secrets: bool = False


class RunningStagerHooks(Hooks):
    """A started stager, as ``start`` and ``attach_to`` return it. :class:`kurma_core.linux.programs.HeldProcess`
    has most of it: mark its methods in the subclass, ``alive = hookimpl(HeldProcess.alive)``.

    :param pid: its process ID on the host.
    :param identity: what another process finds the stager by again; the core writes it to disk as JSON.
    :raises StagerError: the stager broke its protocol.
    """

    pid: int
    identity: Mapping[str, Json]

    @hookspec(required=True)
    def wait_running(self, timeout: float) -> bool:
        """Waits until the pod runs.

        :called: after ``start``
        :param timeout: seconds.
        :returns: True: it runs. False: the stager has exited with status 0: the pod ran and has ended.
        :raises StagerError: the stager failed to start (with the last lines of its output), or the timeout
            expired.
        """

    @hookspec(required=True)
    def wait(self, timeout: float | None) -> int | None:
        """Waits for the stager's end.

        :called: by the process that owns the pod
        :param timeout: seconds; None: without end.
        :returns: the exit status, 128+N for signal N. None: the status is unknown, or the timeout expired (then
            the stager is still alive).
        """

    @hookspec(required=True)
    def alive(self) -> bool:
        """Whether it has not ended.

        :called: at any time
        """

    @hookspec(required=True)
    def fileno(self) -> int:
        """A descriptor that polls readable once the stager has ended.

        :called: by a process that waits for several pods
        """

    @hookspec(required=True)
    def signal(self, number: int) -> None:
        """Sends the stager a signal; does nothing if it has ended.

        :called: to kill a stager that does not come up, or whose start was cancelled
        :param number: the signal's.
        """

    @hookspec(required=True)
    def close(self) -> None:
        """Closes the descriptors of this process. The stager runs on. It may be repeated.

        :called: when this process needs the stager no more
        """

    @hookspec
    def has_come_up(self) -> bool:
        """Whether a pod that was recorded as starting runs by now.

        :called: by a kurmad that finds such a pod
        """
        return False

    @hookspec
    def wait_reaped(self) -> int | None:
        """Waits until the parent of a stager that has ended knows its exit status.

        :called: for a stager that another process has started, if its exit status is not known
        :returns: the exit status; None: it is unknown.
        """
        return None


class CallInHooks(Hooks):
    """A call-in that has been started (:meth:`StagerHooks.begin`).

    :raises StagerError: the stager broke its protocol.
    """

    @hookspec(required=True)
    def wait(self, timeout: float | None) -> int:
        """Waits for its end.

        :called: by the caller of the call-in
        :param timeout: seconds; None: without end.
        :returns: its exit code, 128+N for signal N.
        """

    @hookspec
    def wait_contained(self, timeout: float | None) -> int | None:
        """Waits for the end of a command whose document has ``contained``. At the end of the time, and when the
        operation of this thread is cancelled (:mod:`kurma_core.cancellation`), it kills the command and all
        processes that the command has started.

        :called: by the caller of the call-in ``run``, if :meth:`StagerHooks.app_verbs` has ``run-contained``
        :param timeout: seconds; None: without end.
        :returns: its exit code, 128+N for signal N; None: the time was over.
        """
        return self.wait(timeout)

    @hookspec(required=True)
    def end(self) -> None:
        """Asks it to end, and waits until it has. It may be repeated.

        :called: when the caller goes away, or the pod ends
        """


class AnyStagerHooks(Hooks):
    """Hooks of all three kinds of stagers.

    :raises StagerError: the host lacks something.
    """

    @hookspec
    def features(self) -> StagerFeatures:
        """Tells what the stager can do.

        :called: when a pod is prepared, and later for a pod of the stager
        :returns: the features; without the hook, none.
        """
        return StagerFeatures()

    @hookspec(raises=(OSError,))
    def remains(self) -> Collection[str]:
        """Finds pods, of any stager of this plugin, that still have resources though their own directories are
        gone, for example removed by hand. The core does not ask a plugin whose ``state_dir`` is empty.

        :called: by ``kurma gc``
        :returns: their UUIDs.
        :raises OSError: they cannot be listed.
        """
        return ()

    @hookspec(raises=(OSError,))
    def discard_gone(self, uuid: str) -> tuple[str, ...] | None:
        """Frees resources of a pod without a directory.

        :called: by ``kurma gc``, for what ``remains`` finds
        :param uuid: the pod's.
        :returns: notes for the user; None: there was nothing left to free.
        :raises OSError: a resource cannot be freed.
        :raises BlockingIOError: the pod still runs.
        """
        return None


class StagerHooks(AnyStagerHooks):
    """Runs the inside of a pod. The interface fits two very different designs: a program in a root made of an
    image, whose call-ins the core runs (the Kurma Stager Specification; the core's own engine), and a program that
    runs on the host beside prepared directories.

    Life: ``prepare`` once → ``start`` → ``attach_to`` from any process → ``call`` any number of times →
    ``cleanup``, which is repeatable, from any process, also when ``start`` never happened. A stopped pod may be
    started again, from ``prepare`` on. An argument ``directory`` is the pod's, and ``running`` is the driver's own
    object.

    :param name: the stager's, for messages.
    :raises StagerError: the work failed, and why.
    """

    name: str

    @hookspec(required=True)
    def prepare(self, pod: PodSetup) -> None:
        """Does the work that is possible before the start, on files alone.

        :called: when a pod starts, right before ``start``
        :param pod: the pod.
        """

    @hookspec(required=True)
    def start(self, pod: PodSetup, stdio: Stdio) -> RunningStagerHooks:
        """Starts the stager; does not wait for the pod to run. A program that it starts unblocks signals first:
        kurmad blocks SIGTERM, SIGINT and SIGHUP, and programs inherit that.

        :called: when a pod starts, after ``prepare``; its networks and cgroup are made
        :param pod: the pod.
        :param stdio: the stager's standard input, output and error.
        :returns: the running stager.
        :raises StagerError: it could not be started; ``cleanup`` undoes the steps that were done.
        """

    @hookspec(required=True)
    def attach_to(self, directory: str, identity: Mapping[str, Json]) -> RunningStagerHooks | None:
        """Finds the running stager of a pod.

        :called: by each process that works on a running pod
        :param identity: that of the object that ``start`` returned.
        :returns: the running stager; None: it has ended.
        """

    @hookspec(required=True)
    def status(self, directory: str, running: RunningStagerHooks | None) -> Mapping[str, AppStatus]:
        """Reads the apps' statuses, from the records or by asking the stager. The stager's answer is untrusted:
        check its values.

        :called: at any time
        :param running: None: the stager has ended; then the driver uses the records alone.
        :returns: the statuses, by the apps' names.
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
        """Runs a call-in with the given descriptors, and waits for its end.

        :called: by ``kurma enter``, ``logs``, ``attach`` and others
        :param verb: ``status``, ``logs``, ``run`` or ``attach``.
        :param arguments: of the call-in (docs/reference/stager_protocol.md).
        :param stdio: its standard input, output and error; ``relayed`` is set.
        :param document: bytes that it gets on descriptor 3; None: there are none.
        :returns: its exit code, 128+N for signal N.
        :raises StagerError: the stager has no such call-in, or it broke its protocol.
        """

    @hookspec(required=True)
    def stop(self, directory: str, running: RunningStagerHooks, force: bool) -> None:
        """Asks the stager to end its pod; most drivers send SIGTERM. Does not wait.

        :called: by ``kurma stop``; with ``force`` by ``kurma kill``, and when the time to stop is over
        :param force: kills the stager.
        """

    @hookspec(required=True)
    def cleanup(self, directory: str, cgroup: str) -> None:
        """Ends the stager's remaining processes, and removes what it and this driver made outside the pod's
        directory. It may be repeated, from any process, also when ``start`` never happened.

        :called: when the pod has ended or could not be started
        :param cgroup: the pod's, relative to each hierarchy's root.
        """

    @hookspec(raises=(OSError,))
    def discard(self, directory: str) -> tuple[str, ...]:
        """Frees resources of a pod that stay after its end, until the pod is removed or started again. The pod in
        that directory has ended or was never started. Repeatable.

        As long as there are any, the file ``stager/remains`` in the pod's directory holds the driver's ``name``,
        and the ``image`` of the running stager's ``identity`` stays in the store.

        :called: when the pod is removed or started again, and by ``kurma gc``
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
        """Like ``call``, but does not wait. Without it, typed input does not reach an
        app's terminal in ``kurma run -it``.

        :called: by the foreground command of a pod, for an app's terminal
        :param verb: as for ``call``. :param arguments: as for ``call``. :param stdio: as for ``call``.
        :param document: as for ``call``.
        :returns: the running call-in.
        :raises StagerError: the stager has no such call-in.
        """
        from kurma_core.errors import StagerError

        raise StagerError(f"stager {self.name} has no call-ins that run in the background")

    @hookspec
    def app_verbs(self, directory: str) -> frozenset[str]:
        """Tells how the apps of a running pod can change. A driver with this hook has those of its verbs, too.

        :called: when a caller wants to change an app of a running pod
        :returns: those of ``add``, ``start``, ``stop``, ``rm``, ``reopen-log`` and ``update`` that the pod's
            stager supports, and ``run-contained`` if its commands can be killed with all that they have started;
            without the hook, none.
        """
        return frozenset()

    @hookspec
    def run_contained(
        self, directory: str, running: RunningStagerHooks, app: str, stdio: Stdio, document: bytes
    ) -> CallInHooks:
        """Starts a contained command in an app: one that can be killed with all that it has started.

        :called: for a command with a time limit or with a caller who may go away, if ``app_verbs`` has
            ``run-contained``
        :param app: its name. :param stdio: as for ``call``.
        :param document: the command, as the call-in ``run`` gets it; ``contained`` is set.
        :returns: the running command; the core calls its ``wait_contained``.
        :raises StagerError: the app does not run.
        """
        return self.begin(directory, running, "run", (app,), stdio, document)

    @hookspec
    def no_verb(self, directory: str, verb: str) -> StagerError:
        """Explains why the stager does not support a verb.

        :called: for a verb that ``app_verbs`` lacks
        :param verb: ``add``, ``start``, ``stop``, ``rm``, ``reopen-log`` or ``update``.
        :returns: the error that the caller gets.
        """
        from kurma_core.errors import StagerError

        return StagerError(f"stager {self.name} cannot {verb} apps of a running pod")

    @hookspec
    def add_app(self, pod: PodSetup, running: RunningStagerHooks) -> None:
        """Adds an app to the pod and does not start it. If it fails half-way, ``remove_app`` undoes it.

        :called: by ``kurma app add``
        :param pod: the pod's current setup, but its ``apps`` and those of its manifest hold only the new app.
        """

    @hookspec
    def remove_app(self, directory: str, running: RunningStagerHooks, app: str, volumes: tuple[str, ...]) -> None:
        """Removes an app that does not run, with its root and its logs. Repeatable, also if the app was never
        added completely.

        :called: by ``kurma app rm``, and after an ``add_app`` that failed
        :param app: its name.
        :param volumes: names of the pod's volumes to remove with it.
        """

    @hookspec
    def start_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float) -> None:
        """Starts the app again from a clean root; returns once it runs.

        :called: by ``kurma app start`` and ``kurma app add``
        :param app: its name. :param timeout: seconds for that.
        """

    @hookspec
    def stop_app(self, directory: str, running: RunningStagerHooks, app: str, timeout: float | None) -> None:
        """Asks the app to end; returns once it has, its post-stop handler included. Does nothing if the app does
        not run.

        :called: by ``kurma app stop``; for each app, when a pod is stopped by force
        :param app: its name.
        :param timeout: seconds until it is killed; None: the stager's own stop timeout.
        """

    @hookspec
    def update_app(self, directory: str, running: RunningStagerHooks, app: str, plan: IsolatorPlan) -> None:
        """Changes the settings of the app's cgroup and its OOM score, also while it runs: all of them or none.
        Repeatable.

        :called: by ``kurma app update``, and after one whose process has died
        :param app: its name.
        :param plan: the new plan; only ``cgroup`` and ``oom_score_adj`` differ from the present one. A setting
            that it does not have any more is set to no limit.
        """

    @hookspec
    def reopen_log(self, directory: str, running: RunningStagerHooks, app: str) -> None:
        """Goes on with a new log file in the pod's log directory, after another program has renamed the present
        one. Returns once the new file exists and the old one gets nothing more.

        :called: by ``kurma app reopen-log``
        :param app: its name.
        :raises StagerError: the app does not run, or the file cannot be made.
        """


class StagerImageHooks(AnyStagerHooks):
    """A stager that is an image made by a plugin: the core builds, signs, verifies, stores and runs it by the
    Kurma Stager Specification. Optionally it exports its stager as an image with which another container engine
    runs pods (``kurma stager export``).

    :raises StagerError: the host lacks something.
    """

    @hookspec(required=True)
    def fingerprint(self) -> str:
        """Identifies the image that ``build`` would make now. It must be cheap.

        :called: at every run of a pod with this stager
        :returns: a text that changes whenever the image would: with the interpreter's build, or the plugin's own
            files.
        """

    @hookspec(required=True)
    def build(self, rootfs: str) -> Mapping[str, Json]:
        """Makes the stager's image.

        :called: when the store has no image of this ``fingerprint``
        :param rootfs: an empty directory, to be filled.
        :returns: the image manifest, as a JSON value; its ``app.exec`` starts the stager.
        :raises StagerError: the host lacks something.
        """

    @hookspec
    def export_formats(self) -> tuple[str, ...]:
        """Tells what ``export`` can make.

        :called: by ``kurma stager export``
        :returns: the formats, by the names that ``--format`` takes.
        """
        return ()

    @hookspec
    def export(self, format: str, rootfs: str) -> Mapping[str, Json]:
        """Makes an image with which another container engine runs pods.

        :called: by ``kurma stager export``
        :param format: one of :meth:`export_formats`.
        :param rootfs: an empty directory, to be filled.
        :returns: the image manifest, as a JSON value.
        :raises StagerError: the host lacks something.
        """
        from kurma_core.errors import StagerError

        raise StagerError(f"the stager cannot be exported as {format}")


class StagerOfImagesHooks(AnyStagerHooks):
    """Runs images as stagers by another contract than the Kurma Stager Specification; a plugin NAME provides it.
    ``--stager NAME:LOCATOR`` names such an image, or a section of ``stagers`` with ``driver`` and ``image``.

    :raises StagerError: the image cannot be run.
    """

    @hookspec(required=True)
    def of_image(self, name: str, locator: str) -> StagerHooks:
        """Makes the driver for an image. It does not fetch the image yet: each start fetches and verifies it, by
        :attr:`.driver.DriverContext.host_image`.

        :called: when a pod is prepared or started with such a stager, and later for the pod
        :param name: the stager's, for messages.
        :param locator: of the image.
        :returns: the driver.
        """
