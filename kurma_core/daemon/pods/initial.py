"""What the configuration wants to be there: initial pods, and images that are fetched beforehand.

A pod that was made for an entry of ``initial_pods`` says so by an annotation. It is replaced where the entry says
something else by now, or where its images are others; and removed once its entry is gone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import Cancellation, governing
from kurma_core.daemon.access import without_passwords
from kurma_core.daemon.process.timetable import Timetable
from kurma_core.errors import Cancelled, KurmaError, PodNotFoundError
from kurma_core.linux.clock import timestamp
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods import restarts
from kurma_core.pods.records import read_document
from kurma_core.shortage import words

if TYPE_CHECKING:
    from kurma_core.appc.template import PodTemplate
    from kurma_core.config import Config, InitialPodConfig
    from kurma_core.daemon.kurmad import Daemon
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.request import PodRequest

Json = Any
_LOG = logging.getLogger("kurmad")
#: Annotations of pods that were made for an entry: what it is known by, and a digest of what it says. No other
#: pod may have annotations that begin like these.
ENTRY, VERSION = "kurma.io/daemon/initial-pod", "kurma.io/daemon/initial-version"
#: Seconds: the first pause after a failure, and the longest.
_FIRST, _LONGEST = 1.0, 300.0
#: How many are made, and fetched beforehand, at a time: a host that does not answer holds up few others.
_AT_ONCE = 4


class InitialPods:
    """:param daemon: whose pods they are. :param ready: set once what there was before is known."""

    def __init__(self, daemon: Daemon, ready: threading.Event) -> None:
        self._daemon = daemon
        self._ready = ready
        #: What is still to be done: no pod waits for an image that it does not need.
        self.times = Timetable("initial", _AT_ONCE), Timetable("prefetch", _AT_ONCE)
        self._cancellation = Cancellation()
        self._lock = threading.Lock()
        self._pods: dict[str, _Target] = {}
        self._images: dict[str, _Target] = {}
        self._others = _Target("pods", self.times[0])

    def reconcile(self) -> None:
        """Begins to make true what the configuration says, in the background."""
        config: Config = self._daemon.config
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
            for aim in before:
                if aim not in wanted or wanted[aim] != aim.entry:
                    aim.give_up()  # its entry is gone, or says something else by now
            for aim, pod in wanted.items():
                aim.entry = pod
        self._begin(self._others, self._remove_others)
        for aim, pod in wanted.items():
            have = functools.partial(self._fetch, aim) if pod is None else functools.partial(self._have, aim, pod)
            self._begin(aim, have)

    def close(self) -> None:
        """What is being fetched is given up."""
        self._cancellation.cancel()
        self._ready.set()  # whoever waits for that finds that it is given up
        for times in self.times:
            times.close()

    def to_json(self) -> dict[str, Json]:
        """How it stands, for people."""
        with self._lock:
            return {
                "initialPods": [aim.to_json("pod") for aim in self._pods.values()],
                "prefetchImages": [aim.to_json("image") for aim in self._images.values()],
            }

    # -- doing, and doing again --

    def _begin(self, aim: _Target, do: Callable[[], None]) -> None:
        aim.tries = 0
        aim.times.at(aim.what, 0, lambda: self._attempt(aim, do))

    def _attempt(self, aim: _Target, do: Callable[[], None]) -> None:
        """One at a time of each: two reloads may follow each other closely."""
        self._ready.wait()
        with self._lock:
            if aim.work is not None:
                aim.again = do
                return
            aim.work = Cancellation()
        try:
            self._try(aim, aim.work, do)
        finally:
            with self._lock:
                aim.work, again, aim.again = None, aim.again, None
        if again is not None:
            self._begin(aim, again)

    def _try(self, aim: _Target, work: Cancellation, do: Callable[[], None]) -> None:
        try:
            with self._cancellation.waking(work.cancel), governing(work):
                do()
        except Cancelled:
            return
        except KurmaError as error:
            self._failed(aim, error.message, do)
        except Exception as error:  # noqa: BLE001 (a mistake is one today, and may be none tomorrow)
            _LOG.exception("initial %s: a mistake in kurmad", aim.what)
            self._failed(aim, words(error), do)
        else:
            aim.state, aim.error, aim.next = "present", None, None

    def _failed(self, aim: _Target, why: str, do: Callable[[], None]) -> None:
        delay = min(_LONGEST, _FIRST * 2 ** min(aim.tries, 20))
        aim.tries += 1
        aim.state, aim.error, aim.next = "failed", without_passwords(why), timestamp(time.time() + delay)
        _LOG.error("initial %s: %s; tried again in %g s", aim.what, why, delay)
        aim.times.at(aim.what, delay, lambda: self._attempt(aim, do))

    # -- pods --

    def _fetch(self, aim: _Target) -> None:
        if aim.key not in self._daemon.config.prefetch_images:
            return
        aim.found = self._daemon.client.images.fetch(aim.key).id

    def _have(self, aim: _Target, entry: InitialPodConfig) -> None:
        """:raises KurmaError: it cannot be had, for now."""
        from kurma_core.appc.template import PodTemplate

        if entry not in self._daemon.config.initial_pods:
            return
        template = PodTemplate.parse(_marked(entry))
        current = None
        for uuid, document in self._made():
            if document.manifest.annotation(ENTRY) != _mark(entry):
                continue
            if current is None and self._is_right(document, template):
                current = uuid
            else:
                _LOG.info("initial pod %s is replaced: it, or an image of it, has changed", document.name)
                self._remove(uuid)
        if current is None:
            current = self._daemon.run(_request(entry, template)).uuid
        aim.found = current
        state = self._daemon.manager.store.directory(current).read_state()["state"]
        if state == "prepared":
            self._daemon.launch(current)
        elif state in ENDED_STATES:
            self._daemon.restarts.look(current)
        if entry not in self._daemon.config.initial_pods:
            # It was taken out, or is another one, while this one was made.
            self.reconcile()

    def _is_right(self, document: PodDocument, template: PodTemplate) -> bool:
        """:raises KurmaError: an image of it cannot be had: better the pod that there is than none."""
        if document.manifest.annotation(VERSION) != template.pod.annotation(VERSION):
            # Before the old one goes.
            self._image_ids(template)
            return False
        return document.images == self._image_ids(template)

    def _image_ids(self, template: PodTemplate) -> dict[str, str]:
        images = self._daemon.client.images
        return {app.name: images.of_app(app.image).id for app in template.pod.apps}

    def _made(self) -> list[tuple[str, PodDocument]]:
        """Pods that were made for an entry, whether there still is one."""
        store = self._daemon.manager.store
        found = []
        for uuid in store.uuids():
            try:
                document = read_document(store.directory(uuid))
            except KurmaError:
                continue  # half-made, damaged, or of a newer version
            if document.manifest.annotation(ENTRY) is not None:
                found.append((uuid, document))
        return found

    def _remove_others(self) -> None:
        """:raises KurmaError: one cannot be removed."""
        marks = {_mark(pod) for pod in self._daemon.config.initial_pods}
        for uuid, document in self._made():
            if document.manifest.annotation(ENTRY) in marks:
                continue
            _LOG.info("initial pod %s is removed: its entry is gone", document.name)
            self._remove(uuid)

    def _remove(self, uuid: str) -> None:
        with contextlib.suppress(PodNotFoundError):  # somebody else has removed it
            self._daemon.manager.stop(uuid)
            self._daemon.manager.remove(uuid)


class _Target:
    """What is to be had, and how that stands.

    :param what: what the log calls it. :param times: when it is tried.
    :param key: an entry's, or an image's locator.
    """

    def __init__(self, what: str, times: Timetable, key: str = "") -> None:
        self.what = what
        self.times = times
        self.key = key
        #: What says how a pod is to be.
        self.entry: InitialPodConfig | None = None
        #: What is done for it just now, and what is to be done after that.
        self.work: Cancellation | None = None
        self.again: Callable[[], None] | None = None
        self.state = "waiting"
        self.error: str | None = None
        self.next: str | None = None
        self.found: str | None = None
        self.tries = 0

    def give_up(self) -> None:
        """What it is, nobody wants any more."""
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


def _mark(entry: InitialPodConfig) -> str:
    """What tells pods of this entry from others': a pod's annotations are to be seen, so no password is in it."""
    public = without_passwords(entry.key)
    if public == entry.key:
        return public
    # Another one may differ in who asks alone.
    return f"{public} {hashlib.sha256(entry.key.encode()).hexdigest()[:12]}"


def _marked(entry: InitialPodConfig) -> dict[str, Json]:
    """The entry's template, with the annotations that say what it was made for; and that it is to be kept, unless
    it says otherwise."""
    digest = hashlib.sha256(json.dumps(entry.template, sort_keys=True).encode()).hexdigest()
    annotations = list(entry.template.get("annotations") or [])
    if not any(one["name"] == restarts.POLICY for one in annotations):
        annotations.append({"name": restarts.POLICY, "value": "always"})
    annotations += [{"name": ENTRY, "value": _mark(entry)}, {"name": VERSION, "value": digest}]
    return {**entry.template, "annotations": annotations}


def _request(entry: InitialPodConfig, template: PodTemplate) -> PodRequest:
    from kurma_core.pods.request import PodRequest

    return PodRequest(template, uuid=template.uuid, name=entry.name, configured=True)


__all__ = ["ENTRY", "VERSION", "InitialPods"]
