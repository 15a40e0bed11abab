"""Makes the initial pods of the configuration, and fetches its images in advance.

An annotation marks a pod that was made for an entry of ``initial_pods``. The pod is replaced once the entry or its
images have changed, and removed once its entry is gone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.appc.template import without_passwords
from kurma_core.cancellation import Cancellation, governing
from kurma_core.daemon.process.threads import Timetable, pause_after
from kurma_core.errors import Cancelled, KurmaError, PodNotFoundError
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.daemon_interface import RESTART_POLICY
from kurma_core.shortage import words

if TYPE_CHECKING:
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate
    from kurma_core.config import Config, InitialPodConfig
    from kurma_core.daemon.pods.owned import RunningPod
    from kurma_core.pods.daemon_interface import DaemonInterface, PodDocument

Json = Any
_LOG = logging.getLogger("kurmad")
#: Annotations of pods that were made for an entry: the entry's identity, and a digest of its template. No other
#: pod may have annotations that begin like these.
ENTRY, VERSION = "kurma.io/daemon/initial-pod", "kurma.io/daemon/initial-version"
#: Pods that are made, and images that are fetched, at a time: several, so that a host that does not answer delays
#: few others.
_AT_ONCE = 4


class InitialPods:
    """Makes and keeps the initial pods.

    :param config: the present configuration.
    :param ready: set once kurmad knows the existing pods.
    :param run: prepares and starts a pod.
    :param launch: starts a prepared one.
    :param restart: plans the next start of one that has ended.
    """

    def __init__(
        self,
        pods: DaemonInterface,
        config: Callable[[], Config],
        ready: threading.Event,
        run: Callable[[PodRequest], RunningPod],
        launch: Callable[[str], object],
        restart: Callable[[str], None],
    ) -> None:
        self._interface = pods
        self._config = config
        self._ready = ready
        self._run, self._launch, self._restart = run, launch, restart
        #: Separate for pods and for images: a pod does not wait for images of others.
        self.times = Timetable("initial", _AT_ONCE), Timetable("prefetch", _AT_ONCE)
        self._cancellation = Cancellation()
        self._lock = threading.Lock()
        self._pods: dict[str, _Target] = {}
        self._images: dict[str, _Target] = {}
        self._others = _Target("pods", self.times[0])

    def reconcile(self) -> None:
        """Begins, in the background, to make the pods and fetch the images of the configuration."""
        config = self._config()
        pods = {pod.key: pod for pod in config.initial_pods}
        of_pods, of_images = self.times
        with self._lock:
            before = [*self._pods.values(), *self._images.values()]
            self._pods = {key: self._pods.get(key) or _Target(f"pod {key}", of_pods, key) for key in pods}
            self._images = {
                key: self._images.get(key) or _Target(f"image {key}", of_images, key)
                for key in config.prefetch_images
            }
            wanted: dict[_Target, InitialPodConfig | None] = {self._pods[key]: pod for key, pod in pods.items()}
            wanted |= dict.fromkeys(self._images.values())
            for target in before:
                if target not in wanted or wanted[target] != target.entry:
                    target.give_up()  # its entry was removed or has changed
            for target, pod in wanted.items():
                target.entry = pod
        self._begin(self._others, self._remove_others)
        for target, pod in wanted.items():
            make = self._fetch if pod is None else functools.partial(self._make, entry=pod)
            self._begin(target, functools.partial(make, target))

    def close(self) -> None:
        """Gives up downloads."""
        self._cancellation.cancel()
        self._ready.set()  # wakes the threads that wait for it
        for times in self.times:
            times.close()

    def to_json(self) -> dict[str, Json]:
        with self._lock:
            return {
                "initialPods": [target.to_json("pod") for target in self._pods.values()],
                "prefetchImages": [target.to_json("image") for target in self._images.values()],
            }

    # -- attempts --

    def _begin(self, target: _Target, do: Callable[[], None]) -> None:
        target.tries = 0
        target.times.at(target.what, 0, lambda: self._attempt(target, do))

    def _attempt(self, target: _Target, do: Callable[[], None]) -> None:
        """Works on a target. If another thread does, as after two reloads, that thread does it next."""
        self._ready.wait()
        with self._lock:
            if target.work is not None:
                target.again = do
                return
            target.work = Cancellation()
        try:
            self._try(target, target.work, do)
        finally:
            with self._lock:
                target.work, again, target.again = None, target.again, None
        if again is not None:
            self._begin(target, again)

    def _try(self, target: _Target, work: Cancellation, do: Callable[[], None]) -> None:
        try:
            with self._cancellation.waking(work.cancel), governing(work):
                do()
        except Cancelled:
            return
        except KurmaError as error:
            self._failed(target, error.message, do)
        except Exception as error:  # noqa: BLE001 (a mistake in kurmad: the next attempt may succeed)
            _LOG.exception("initial %s: a mistake in kurmad", target.what)
            self._failed(target, words(error), do)
        else:
            target.state, target.error, target.next = "present", None, None

    def _failed(self, target: _Target, why: str, do: Callable[[], None]) -> None:
        delay = pause_after(target.tries)
        target.tries += 1
        target.state, target.error = "failed", without_passwords(why)
        target.next = timestamp(time.time() + delay)
        _LOG.error("initial %s: %s; tried again in %g s", target.what, why, delay)
        target.times.at(target.what, delay, lambda: self._attempt(target, do))

    # -- pods and images --

    def _fetch(self, target: _Target) -> None:
        if target.key in self._config().prefetch_images:
            target.found = self._interface.fetch_image(target.key)

    def _make(self, target: _Target, entry: InitialPodConfig) -> None:
        """:raises KurmaError: the pod cannot be made or started now."""
        from kurma_core.appc.template import PodTemplate

        if entry not in self._config().initial_pods:
            return
        pods = self._interface
        template = PodTemplate.parse(_annotated(entry))
        uuid = None
        for made, document in pods.annotated(ENTRY):
            if document.manifest.annotation(ENTRY) != _identity(entry):
                continue
            if uuid is None and self._is_right(document, template):
                uuid = made
            else:
                _LOG.info("initial pod %s is replaced: it, or an image of it, has changed", document.name)
                self._remove(made)
        if uuid is None:
            uuid = self._run(pods.initial_request(template, entry.name)).uuid
        target.found = uuid
        state = pods.state(uuid).state
        if state == "prepared":
            self._launch(uuid)
        elif state in ENDED_STATES:
            self._restart(uuid)
        if entry not in self._config().initial_pods:
            # It was removed or changed while the pod was made.
            self.reconcile()

    def _is_right(self, document: PodDocument, template: PodTemplate) -> bool:
        """:raises KurmaError: an image is not available: the present pod is kept then."""
        images = self._interface.image_ids(template)
        same = document.manifest.annotation(VERSION) == template.pod.annotation(VERSION)
        return same and document.images == images

    def _remove_others(self) -> None:
        """:raises KurmaError: a pod cannot be removed."""
        wanted = {_identity(pod) for pod in self._config().initial_pods}
        for uuid, document in self._interface.annotated(ENTRY):
            if document.manifest.annotation(ENTRY) not in wanted:
                _LOG.info("initial pod %s is removed: its entry is gone", document.name)
                self._remove(uuid)

    def _remove(self, uuid: str) -> None:
        with contextlib.suppress(PodNotFoundError):  # another process has removed it
            self._interface.stop(uuid)
            self._interface.remove(uuid)


class _Target:
    """A pod or an image that the configuration wants, and its state.

    :param what: its name in the log. :param times: of the next attempt.
    :param key: an entry's, or an image's locator.
    """

    def __init__(self, what: str, times: Timetable, key: str = "") -> None:
        self.what = what
        self.times = times
        self.key = key
        #: Of a pod.
        self.entry: InitialPodConfig | None = None
        #: Cancels the attempt that a thread makes now; and the work to do after it.
        self.work: Cancellation | None = None
        self.again: Callable[[], None] | None = None
        self.state = "waiting"
        self.error: str | None = None
        self.next: str | None = None
        self.found: str | None = None
        self.tries = 0

    def give_up(self) -> None:
        self.times.cancel(self.what)
        if self.work is not None:
            self.work.cancel()

    def to_json(self, kind: str) -> dict[str, Json]:
        return {
            "name": without_passwords(self.key),
            kind: self.found,
            "state": self.state,
            "error": self.error,
            "next": self.next,
        }


def _identity(entry: InitialPodConfig) -> str:
    """The value of :data:`ENTRY`. It has no password in it: clients that may only read see annotations."""
    public = without_passwords(entry.key)
    if public == entry.key:
        return public
    # The digest distinguishes entries that differ only in their passwords.
    return f"{public} {hashlib.sha256(entry.key.encode()).hexdigest()[:12]}"


def _annotated(entry: InitialPodConfig) -> dict[str, Json]:
    """The entry's template with the variables of its files and our annotations, and a policy to restart the pod
    always unless it has another.

    :raises UsageError: a file of variables cannot be read.
    """
    from kurma_core.api.pod_file import digest, marked, with_variables

    template = with_variables(entry.template, f"initial_pods: {entry.name}")
    marks = {ENTRY: _identity(entry), VERSION: digest(template)}
    if not any(one["name"] == RESTART_POLICY for one in template.get("annotations") or ()):
        marks = {RESTART_POLICY: "always", **marks}
    return marked(template, marks)
