"""The driver of networks whose plugin is an image: runs its scripts for pods (Kurma Network Specification)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kurma_core.appc.cni_result import parse_result
from kurma_core.errors import KurmaError, NetworkError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import HostTree
from kurma_core.hookspecs.network import AttachmentContext, Leak, NetworkHooks
from kurma_core.json_text import loads
from kurma_core.linux.process import boot_id
from kurma_core.linux.programs import one_line
from kurma_core.models.network import Attachment, NetworkRequest, NetworkResult
from kurma_core.value import replace
from kurma_net_aci import roots, scripts, setup_processes
from kurma_net_aci.inside.job import Report
from kurma_net_aci.records import VERSION, Joined, Place
from kurma_net_aci.roots import Root
from kurma_net_aci.scripts import what_happened

Json = Any
_VERBS = {"setup": "set up", "add": "join", "del": "leave"}
#: Most bytes of a result.
_RESULT_MAX = 1 << 20
#: Attempts to set up a network that other processes remove before it can be used.
_TRIES = 10


class AciNetwork(NetworkHooks):
    """Serves every network whose plugin is an image.

    :param host_image: finds and verifies an image that runs with host privilege.
    :param timeout: seconds that each script may take.
    :param note: prints a note for the user, one line.
    :param daemon: this process is a daemon, which sets up every network again after its start.
    """

    def __init__(
        self,
        state_dir: str,
        host_image: Callable[[str], HostTree],
        timeout: float,
        note: Callable[[str], None],
        *,
        daemon: bool = False,
    ) -> None:
        self._state_dir = state_dir
        self._host_image = host_image
        self._timeout = timeout
        self._note = note
        self._daemon = daemon
        #: By network, the setups that succeeded in this process, and those that failed, with the error.
        self._set_up: dict[str, Mapping[str, Json]] = {}
        self._failed: dict[str, tuple[Mapping[str, Json], NetworkError]] = {}

    # -- setup and status --

    @hookimpl
    def setup(self, config: Mapping[str, Json]) -> None:
        """Verifies the image, and runs its ``setup`` unless that has succeeded for this image and this
        configuration since the start of the machine or the daemon.

        :raises NetworkError: a script is missing, or ``setup`` fails or has failed in this process.
        :raises KurmaError: the image cannot be fetched, or is not trusted.
        """
        with self._ready(config):
            pass

    @hookimpl
    def interface(self, config: Mapping[str, Json]) -> str:
        """The scripts name the interface."""
        return ""

    @hookimpl
    def publishes(self, config: Mapping[str, Json]) -> str:
        """The specification has no way to pass ports to a script."""
        return "its plugin is an image, which is not told of ports"

    @hookimpl
    def status(self, config: Mapping[str, Json]) -> None:
        """Checks that pods could join now, without running a script. :raises KurmaError: they could not, and
        why."""
        image = self._image(config)
        place = self._place(config)
        root = roots.find(place, image.id)
        if root is not None:
            roots.check_scripts(root, place.network)
        self._raise_failure(place.network, self._wanted(config, image))

    # -- joining and leaving --

    @hookimpl
    def add(self, context: AttachmentContext) -> NetworkResult:
        """Joins the pod by the script ``add``.

        :raises NetworkError: the script failed, or printed no CNI result; ``delete`` undoes it.
        :raises KurmaError: as :meth:`setup`.
        """
        config, network = context.attachment.config, context.attachment.network
        request = context.attachment.request
        if request.ips or request.mac:
            raise NetworkError(
                f'network "{network}" cannot be asked for an address: its plugin is an image', network=network
            )
        with self._ready(config) as (place, root, lock):
            joined = Joined(context.pod, context.pod_name, context.namespace, root.image, context.attachment)
            with place.lock_joined(context.pod, context.interface) as own_lock:
                place.write(joined)
                report = self._call(place, root, "add", joined, (lock, own_lock))
                result = _result(report, network)
                place.write(replace(joined, added=True))
        return result

    @hookimpl
    def delete(self, context: AttachmentContext) -> None:
        """Runs ``del`` in the root of ``add``, with the same arguments. It waits for an ``add`` that still runs
        after its Kurma was killed. If the pod was not added, or ``del`` has succeeded already, it runs no script.

        :raises NetworkError: the script failed; it may be tried again.
        """
        place = Place(self._state_dir, context.attachment.network)
        pod, interface = context.pod, context.interface
        if not place.knows(pod, interface):
            return
        if self._root_of(place, pod, interface) is None and not self._replaced(context):
            place.forget(pod, interface)
            return
        with place.lock() as lock, place.lock_joined(pod, interface) as own_lock:
            if place.knows(pod, interface):
                root = self._root_of(place, pod, interface)
                if root is None:
                    raise NetworkError(
                        f'cannot leave network "{place.network}": its root is gone from {place.roots}',
                        network=place.network,
                    )
                joined = place.read(pod, interface)
                if joined is None:  # the record is damaged
                    joined = Joined(pod, context.pod_name, context.namespace, root.image, context.attachment)
                place.write(replace(joined, added=False))
                self._call(place, root, "del", joined, (lock, own_lock))
            place.forget(pod, interface)
        self._sweep(place)

    def _replaced(self, context: AttachmentContext) -> bool:
        """Makes another root in place of a lost one, for ``del``; returns whether that succeeded. If the image
        cannot be fetched or verified any more, ``del`` cannot run, and the pod leaves without it.
        """
        try:
            self.setup(context.attachment.config)
        except KurmaError as error:
            made = f"what {roots.script_path('add')} has made on the host stays"
            self._note(f"pod {context.pod}: {made}: its root was lost, and {error.message}")
            return False
        return True

    @hookimpl
    def check(self, context: AttachmentContext) -> None:
        """Checks that the pod is joined and that its interface exists; only the scripts know more about the
        network.

        :raises NetworkError: the pod is not joined, or the interface is missing.
        """
        network = context.attachment.network
        joined = Place(self._state_dir, network).read(context.pod, context.interface)
        if joined is None or not joined.added:
            raise NetworkError(f'pod {context.pod} is not joined to network "{network}"', network=network)
        from kurma_core.linux.namespaces import in_network_namespace

        try:
            names = in_network_namespace(context.namespace, _interfaces)
        except OSError as error:
            raise NetworkError(
                f'cannot check network "{network}": {error.strerror}: {context.namespace}', network=network
            ) from error
        if context.interface and context.interface not in names:
            raise NetworkError(
                f'network "{network}": the interface {context.interface} is gone from pod {context.pod}',
                network=network,
            )

    def _call(self, place: Place, root: Root, script: str, joined: Joined, locks: tuple[int, ...]) -> Report:
        arguments = [joined.namespace, joined.pod]
        if joined.attachment.interface:
            arguments.append(joined.attachment.interface)
        return self._run(place, root, script, arguments, joined.attachment.config, locks)

    def _run(
        self,
        place: Place,
        root: Root,
        script: str,
        arguments: list[str],
        config: Mapping[str, Json],
        locks: tuple[int, ...],
    ) -> Report:
        """Runs a script. :raises NetworkError: it failed, with its output."""
        path = roots.script_path(script)
        about = f'cannot {_VERBS[script]} network "{place.network}": {path} of {root.aci}'
        try:
            report = scripts.run(
                root.path,
                [path, *arguments],
                stdin=json.dumps(dict(config)).encode(),
                environment=root.environment,
                timeout=self._timeout,
                keep=script == "setup",
                locks=locks,
            )
        except NetworkError as error:
            raise NetworkError(f"{about}: {error.message}", network=place.network) from error
        if not report.succeeded:
            raise NetworkError(f"{about} {what_happened(report, self._timeout)}", network=place.network)
        return report

    @staticmethod
    def _root_of(place: Place, pod: str, interface: str) -> Root | None:
        """Returns the root in which the pod was added; if that is lost, the network's current root."""
        joined = place.read(pod, interface)
        root = None if joined is None else roots.find(place, joined.image)
        return root or roots.find(place, str((place.setup() or {}).get("image")))

    # -- setting up --

    @contextmanager
    def _ready(self, config: Mapping[str, Json]) -> Iterator[tuple[Place, Root, int]]:
        """Yields the network after its setup, with its shared lock held."""
        image = self._image(config)
        place, wanted = self._place(config), self._wanted(config, image)
        for _ in range(_TRIES):
            with place.lock() as lock:
                root = self._found(place, wanted)
                if root is not None:
                    yield place, root, lock
                    return
            self._raise_failure(place.network, wanted)
            with place.lock(alone=True) as lock:
                if self._found(place, wanted) is None:  # another process may have set it up meanwhile
                    self._set_up_now(place, wanted, image, lock)
        raise NetworkError(f'network "{place.network}" is removed as fast as it is set up', network=place.network)

    def _found(self, place: Place, wanted: Mapping[str, Json]) -> Root | None:
        """Returns the network's root, if the network is set up for this image and configuration."""
        if place.setup() != wanted or (self._daemon and self._set_up.get(place.network) != wanted):
            return None
        return roots.find(place, wanted["image"])

    def _set_up_now(self, place: Place, wanted: Mapping[str, Json], image: HostTree, lock: int) -> None:
        try:
            place.forget_setup()
            root = roots.find(place, image.id) or self._make_root(place, image, wanted["config"]["aci"])
            roots.check_scripts(root, place.network)
            self._run(place, root, "setup", [], wanted["config"], (lock,))
            with suppress(OSError):  # if cgroups cannot be written to, helpers stay in the caller's cgroup
                setup_processes.settle(root.path)
            place.write_setup(wanted)
        except NetworkError as error:
            self._failed[place.network] = (wanted, error)
            raise
        self._set_up[place.network] = wanted
        self._remove_superfluous(place)

    def _make_root(self, place: Place, image: HostTree, aci: str) -> Root:
        try:
            return roots.make(place, image, aci)
        except NetworkError:
            if os.path.isdir(image.path):
                raise
            # A sweep removed the image from the store after the look-up.
            return roots.make(place, self._host_image(aci), aci)

    def _raise_failure(self, network: str, wanted: Mapping[str, Json]) -> None:
        """Raises the error of a setup that failed earlier in this process, which does not run it again."""
        failed = self._failed.get(network)
        if failed is not None and failed[0] == wanted:
            error = failed[1]
            raise NetworkError(error.message, hint=error.hint, **error.data)

    @staticmethod
    def _wanted(config: Mapping[str, Json], image: HostTree) -> dict[str, Json]:
        """Returns the record of a successful setup: boot, image and configuration for which it is valid."""
        return {"version": VERSION, "boot": boot_id(), "image": image.id, "config": dict(config)}

    def _image(self, config: Mapping[str, Json]) -> HostTree:
        network = config["name"]
        if not isinstance(config.get("aci"), str):
            raise NetworkError(
                f'network "{network}" names no image', hint="`aci` says where its image is", network=network
            )
        try:
            return self._host_image(config["aci"])
        except KurmaError as error:
            error.message = f'network "{network}": {error.message}'
            raise

    def _place(self, config: Mapping[str, Json]) -> Place:
        return Place(self._state_dir, config["name"])

    # -- removal --

    @hookimpl
    def remove(self, config: Mapping[str, Json]) -> None:
        """Ends the helpers of ``setup``, and removes the roots. Other results of ``setup`` on the host stay: only
        the image knows them, and the specification has no script that removes them.

        :raises NetworkError: pods are joined, or a helper or a root cannot be removed.
        """
        place = self._place(config)
        if place.exists():
            with place.lock(alone=True):
                pods = sorted({pod for pod, _ in place.joined()})
                if pods:
                    raise NetworkError(
                        f'network "{place.network}" is in use by {", ".join(pods)}',
                        hint="stop and remove these pods first",
                        network=place.network,
                    )
                place.forget_setup()
                for name in roots.names(place):
                    self._remove_root(place, name)
                place.remove()
        self._failed.pop(place.network, None)

    def _sweep(self, place: Place) -> None:
        """Removes the roots of earlier images after their last pod has left."""
        if self._superfluous(place):
            with place.lock_if_free() as free:
                if free:
                    self._remove_superfluous(place)

    def _superfluous(self, place: Place) -> tuple[str, ...]:
        joined = [place.read(pod, interface) for pod, interface in place.joined()]
        if None in joined:
            return ()  # a damaged record does not tell which root the pod needs
        needed = [one.image for one in joined if one is not None]
        return roots.superfluous(place, (place.setup() or {}).get("image"), needed)

    def _remove_superfluous(self, place: Place) -> None:
        for name in self._superfluous(place):
            self._remove_root(place, name)

    @staticmethod
    def _remove_root(place: Place, name: str) -> None:
        try:
            left = setup_processes.end(roots.path_of(place, name))
        except OSError as error:
            raise NetworkError(
                f'network "{place.network}": cannot remove the cgroup of its helpers: {error.strerror}',
                network=place.network,
            ) from error
        if left:
            pids = ", ".join([str(pid) for pid in left])
            raise NetworkError(
                f'network "{place.network}": processes that its setup has left do not die: {pids}',
                network=place.network,
            )
        roots.remove(place, name)

    # -- check and repair --

    @hookimpl
    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Finds attachments whose pod is gone, and unused roots."""
        known = {config["name"] for config in configs}
        found = []
        for place in Place.all(self._state_dir):
            joined = place.joined()
            for pod, interface in joined:
                if pod not in pods:
                    what = f"interface {interface} of pod {pod}" if interface else f"pod {pod}"
                    text = f"{what}, which joined by {roots.script_path('add')}"
                    found.append(Leak("attachment", text, "its pod is gone", place.network, pod))
            if place.network not in known:
                if not joined:
                    text = f"roots and helpers of an image in {place.path}"
                    found.append(Leak("root", text, "its network is not configured any more", place.network))
            else:
                found += [
                    Leak("root", f"{place.roots}/{name}", "neither its network nor a pod needs it", place.network)
                    for name in self._superfluous(place)
                ]
        return tuple(found)

    @hookimpl
    def repair(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Runs ``del`` for attachments whose pod is gone, and removes unused roots."""
        by_name = {config["name"]: config for config in configs}
        why: dict[tuple[str, str], str] = {}
        for place in Place.all(self._state_dir):
            for pod, interface in place.joined():
                if pod not in pods:
                    try:
                        self.delete(_context_of(place, pod, interface, by_name.get(place.network)))
                    except KurmaError as error:
                        why[place.network, pod] = error.message
            try:
                if place.network in by_name:
                    self._sweep(place)
                elif not place.joined():
                    self.remove({"name": place.network})
            except KurmaError as error:
                why[place.network, ""] = error.message
        left = []
        for leak in self.leaks(configs, pods):
            reason = why.get((leak.network, leak.pod))
            left.append(leak if reason is None else replace(leak, why=f"{leak.why}: {reason}"))
        return tuple(left)


def _context_of(place: Place, pod: str, interface: str, config: Mapping[str, Json] | None) -> AttachmentContext:
    """Returns the arguments of an ``add`` from its record; if that is damaged, arguments made of the names."""
    joined = place.read(pod, interface)
    if joined is not None:
        return AttachmentContext(pod, joined.pod_name, joined.namespace, interface, joined.attachment)
    network = place.network
    attachment = Attachment(network, "", interface, config or {"name": network}, NetworkRequest(network))
    return AttachmentContext(pod, "", f"/run/netns/kurma-{pod}", interface, attachment)


def _interfaces() -> list[str]:
    import socket

    return [name for _, name in socket.if_nameindex()]


def _result(report: Report, network: str) -> NetworkResult:
    """Parses the CNI result that ``add`` has printed. :raises NetworkError: it is malformed."""
    about = f'cannot join network "{network}": {roots.script_path("add")} printed'
    if len(report.stdout) > _RESULT_MAX:
        raise NetworkError(f"{about} more than {_RESULT_MAX} bytes instead of a result", network=network)
    try:
        value = loads(report.stdout)
    except ValueError:
        found = one_line(report.stdout)[:80] or "nothing"
        raise NetworkError(f"{about} no result but {found}", network=network) from None
    return parse_result(value, network)
