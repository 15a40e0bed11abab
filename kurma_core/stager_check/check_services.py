"""The pod manager's services for a check: every pod runs the probe image under the checked stager."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from kurma_core.errors import StagerError
from kurma_core.json_text import loads
from kurma_core.linux.process import wait_pidfd
from kurma_core.models.image import Conventions, RenderedImage
from kurma_core.pods.run.stager_drivers import Stagers
from kurma_core.pods.services import Services
from kurma_core.stager_check import probe_image
from kurma_core.stager_check.probe import ADDRESS
from kurma_core.staging.aci_stager import AciStager, ImageSource
from kurma_core.staging.stager_process import StagerProcess
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.appc.image import ImageManifest
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.hookspecs.stager import StagerHooks
    from kurma_core.images.manager import ImageManager
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.spawn_plan import SpawnPlan, Started, Starter
    from kurma_core.spawner.client import Spawner
    from kurma_core.stager_check.probe_image import ProbeImage
    from kurma_core.staging.callin import StagerTimes


#: Seconds for which a prestarted stager must wait for its pod.
_EARLY = 0.3


@frozen
class Patience:
    """Time limits, in seconds.

    :param start: limit for a stager to close descriptor 4.
    :param stop: time of apps between SIGTERM and SIGKILL (``stopTimeout``).
    :param answer: limit for all events that should happen at once.
    """

    start: float = 15.0
    stop: float = 2.0
    answer: float = 10.0


class _Tethering:
    """A spawner whose programs the kernel kills when this process dies."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner

    def start(self, plan: SpawnPlan) -> Started:
        return self._spawner.start(replace(plan, parent_death_signal=signal.SIGKILL))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spawner, name)


class WatchedStager(AciStager):
    """The checked stager. The kernel kills it when the check dies, and the check listens in its pod's network
    namespace before it starts."""

    def __init__(self, name: str, image: ImageSource, spawner: Spawner, version: str, times: StagerTimes) -> None:
        super().__init__(name, image, cast("Starter", _Tethering(spawner)), version, times)
        self._untethered = spawner
        self.listeners: dict[str, socket.socket] = {}
        #: Start stagers before their pods are known (prestarted).
        self.early = False
        #: By app, fields of its plan besides those that its isolators set.
        self.plans: Mapping[str, Mapping[str, Any]] = {}
        #: The version that the plans of all apps have; 0: the version of their newest key.
        self.plan_version = 0

    def forks(self) -> bool:
        """Whether its last stager was forked by a fork server."""
        return self._untethered.fork_server is not None

    def start(self, pod: PodSetup, stdio: Stdio) -> StagerProcess:
        assert pod.network_namespace is not None
        self.listeners[pod.uuid] = _listen(pod.network_namespace)
        return self._start_early(pod) if self.early else super().start(pod, stdio)

    def manifest(self, pod: PodSetup, size: tuple[int, int] | None = None) -> bytes:
        plans = {name: replace(plan, **self.plans.get(name, {})) for name, plan in pod.plans.items()}
        manifest = super().manifest(replace(pod, plans=plans), size)
        if not self.plan_version:
            return manifest
        document = loads(manifest, own=True)
        for one in document["stagerConfig"]["kurma.io"]["apps"].values():
            one["plan"]["version"] = self.plan_version
        return json.dumps(document).encode()

    def _start_early(self, pod: PodSetup) -> StagerProcess:
        """Starts the stager before its pod is known. :raises StagerError: it does not wait for the pod."""
        from kurma_core.staging.prestarted import PrestartPlace

        waiting = self.prestart(
            PrestartPlace(f"{pod.directory}/stager", pod.cgroup, pod.network_namespace, own=pod.directory)
        )
        try:
            if wait_pidfd(waiting.fileno(), _EARLY):
                raise StagerError("it has ended, where it should wait for the byte on descriptor 5")
        except BaseException:
            waiting.discard()
            raise
        return self.hand_over(waiting, pod)


def _listen(namespace: str) -> socket.socket:
    """Makes a listening socket that apps in that network namespace can reach."""
    from kurma_core.linux import namespaces

    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.enter_netns(namespace)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(ADDRESS)
        listener.listen(16)
        return listener
    finally:
        namespaces.setns(own, namespaces.CLONE_NEWNET)
        os.close(own)


class CheckServices(Services):
    """Services of the check. :param services: the caller's, whose store and spawner are used."""

    def __init__(
        self, services: Services, driver: WatchedStager, config: Any, image: ProbeImage, patience: Patience
    ) -> None:
        self._outer = services
        probes = cast("ImageManager", _ProbeImages(image, services))
        # The apps are the check's own and need no protection of the host, so no isolator is required.
        settings = replace(
            services.config, start_timeout=patience.start, stop_timeout=patience.stop, required_isolators={}
        )
        super().__init__(settings, services.registry, lambda: probes, lambda text: None)
        self.stagers = _OneStager(self, driver, config)

    @property
    def spawner(self) -> Spawner:
        return self._outer.spawner


class _OneStager(Stagers):
    def __init__(self, services: Services, driver: WatchedStager, config: Any) -> None:
        super().__init__(services.config, services.registry, lambda: services.images, lambda: services.spawner)
        self._driver = driver
        self._own_config = config

    def check(self, name: str) -> None:
        return

    def unapplied(self, name: str) -> str:
        return ""

    def config(self, name: str) -> Any:
        return self._own_config

    def get(self, name: str) -> StagerHooks:
        return self._driver

    def of_pod(self, document: PodDocument) -> StagerHooks:
        return self._driver


class _ProbeImages:
    """The pod manager's interface to images, for the one probe image, which is in no store."""

    def __init__(self, image: ProbeImage, services: Services) -> None:
        self._image = image
        self._services = services

    def of_app(self, *_: Any, **__: Any) -> ProbeImage:
        return self._image

    def manifest(self, image_id: str) -> ImageManifest:
        return self._image.manifest

    def render(self, *_: Any, **__: Any) -> RenderedImage:
        return RenderedImage(self._image.id, self._image.layers, self._image.manifests)

    def conventions(self, image_id: str) -> Conventions:
        return Conventions()

    def groups_of(self, image_id: str, user: str) -> tuple[str, tuple[int, ...]]:
        return (probe_image.GROUP, (probe_image.FURTHER_GROUP_ID,)) if user == probe_image.USER else ("0", ())

    def keeping(self) -> AbstractContextManager[None]:
        return self._services.images.keeping()
