"""The driver: a pod joins and leaves a network by the scripts of an image (Kurma Network Specification; W2)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kurma_core.appc.cni_result import parse_result
from kurma_core.errors import KurmaError, NetworkError
from kurma_core.hookspecs.driver import HostTree
from kurma_core.hookspecs.network import AttachmentContext, Leak
from kurma_core.json_text import loads
from kurma_core.linux.process import boot_id
from kurma_core.linux.programs import one_line
from kurma_core.models.network import Attachment, NetworkRequest, NetworkResult
from kurma_core.value import replace
from kurma_net_aci import calls, helpers, roots
from kurma_net_aci.inside.job import Report
from kurma_net_aci.place import VERSION, Joined, Place
from kurma_net_aci.roots import Root
from kurma_net_aci.words import what_happened

Json = Any
_VERBS = {"setup": "set up", "add": "join", "del": "leave"}
#: Bytes of a result; a longer one is none.
_RESULT_MAX = 1 << 20
#: Times that a network is set up which others remove before it can be used.
_TRIES = 10


class AciNetwork:
    """Serves every network whose plugin is an image.

    :param host_image: finds and verifies an image that runs with host privilege (K5).
    :param timeout: seconds that each script may take.
    :param note: tells the user something in one line.
    :param daemon: this process is a daemon: its start has every network set up anew.
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
        #: Of this process: by network, what was set up, and what could not be, with the reason.
        self._set_up: dict[str, Mapping[str, Json]] = {}
        self._failed: dict[str, tuple[Mapping[str, Json], NetworkError]] = {}

    # -- what there is --

    def setup(self, config: Mapping[str, Json]) -> None:
        """Verifies the image, and runs its ``setup`` unless that has succeeded already: for this image and this
        configuration, since the machine or the daemon started.

        :raises NetworkError: a script is missing, or ``setup`` fails or has failed in this process.
        :raises KurmaError: the image cannot be had, or nothing that counts vouches for it.
        """
        with self._ready(config):
            pass

    def publishes(self, config: Mapping[str, Json]) -> bool:
        """The document has no way to tell a script of ports."""
        return False

    def status(self, config: Mapping[str, Json]) -> None:
        """:raises KurmaError: pods could not join now, and why. Nothing is run."""
        image = self._image(config)
        place = self._place(config)
        root = roots.find(place, image.id)
        if root is not None:
            roots.check_scripts(root, place.network)
        self._raise_failure(place.network, self._wanted(config, image))

    # -- joining and leaving --

    def add(self, context: AttachmentContext) -> NetworkResult:
        """:raises NetworkError: the script failed, or printed no CNI result; ``delete`` undoes what it did.
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

    def delete(self, context: AttachmentContext) -> None:
        """Runs ``del`` in the root that ``add`` ran in, with the same arguments; an ``add`` that still runs, of a
        Kurma that was killed, is waited for. Where nothing was added, or ``del`` has succeeded, nothing is run.

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
                if joined is None:  # torn
                    joined = Joined(pod, context.pod_name, context.namespace, root.image, context.attachment)
                place.write(replace(joined, added=False))
                self._call(place, root, "del", joined, (lock, own_lock))
            place.forget(pod, interface)
        self._sweep(place)

    def _replaced(self, context: AttachmentContext) -> bool:
        """Whether there is another root for one that was lost: it is better than none. Where the image cannot be
        had or verified any more, nothing can be run, and the pod is not kept for it.
        """
        try:
            self.setup(context.attachment.config)
        except KurmaError as error:
            made = f"what {roots.script_path('add')} has made on the host stays"
            self._note(f"pod {context.pod}: {made}: its root was lost, and {error.message}")
            return False
        return True

    def check(self, context: AttachmentContext) -> None:
        """What can be told of a network that only its scripts know: that the pod is joined, and that its interface
        is there.

        :raises NetworkError: it is not so.
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
        """:raises NetworkError: it has not succeeded; in what words."""
        path = roots.script_path(script)
        about = f'cannot {_VERBS[script]} network "{place.network}": {path} of {root.aci}'
        try:
            report = calls.run(
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
        """The root that the pod was added with; if that is lost, the network's own."""
        joined = place.read(pod, interface)
        root = None if joined is None else roots.find(place, joined.image)
        return root or roots.find(place, str((place.setup() or {}).get("image")))

    # -- setting up --

    @contextmanager
    def _ready(self, config: Mapping[str, Json]) -> Iterator[tuple[Place, Root, int]]:
        """The network, set up, with its lock held, which is shared with others that use it."""
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
                if self._found(place, wanted) is None:  # nobody else has done it meanwhile
                    self._set_up_now(place, wanted, image, lock)
        raise NetworkError(f'network "{place.network}" is removed as fast as it is set up', network=place.network)

    def _found(self, place: Place, wanted: Mapping[str, Json]) -> Root | None:
        """Its root, if it is set up as it is wanted."""
        if place.setup() != wanted or (self._daemon and self._set_up.get(place.network) != wanted):
            return None
        return roots.find(place, wanted["image"])

    def _set_up_now(self, place: Place, wanted: Mapping[str, Json], image: HostTree, lock: int) -> None:
        try:
            place.forget_setup()
            root = roots.find(place, image.id) or self._make_root(place, image, wanted["config"]["aci"])
            roots.check_scripts(root, place.network)
            self._run(place, root, "setup", [], wanted["config"], (lock,))
            with suppress(OSError):  # a host whose cgroups cannot be written to: helpers stay in the caller's
                helpers.settle(root.path)
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
            # The store was swept between its answer and the copy.
            return roots.make(place, self._host_image(aci), aci)

    def _raise_failure(self, network: str, wanted: Mapping[str, Json]) -> None:
        """A setup that has failed is not run again by this process, nor is anything that needs it."""
        failed = self._failed.get(network)
        if failed is not None and failed[0] == wanted:
            error = failed[1]
            raise NetworkError(error.message, hint=error.hint, **error.data)

    @staticmethod
    def _wanted(config: Mapping[str, Json], image: HostTree) -> dict[str, Json]:
        """What a setup is good for; it stands on disk when it has succeeded."""
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

    # -- taking away --

    def remove(self, config: Mapping[str, Json]) -> None:
        """Ends what ``setup`` has left running, and removes the roots. What else it has made on the host only the
        image knows, and the document has no script that would take it away.

        :raises NetworkError: pods are joined, or something does not go.
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
        """Roots of earlier images whose last pod has gone."""
        if self._superfluous(place):
            with place.lock_if_free() as free:
                if free:
                    self._remove_superfluous(place)

    def _superfluous(self, place: Place) -> tuple[str, ...]:
        joined = [place.read(pod, interface) for pod, interface in place.joined()]
        if None in joined:
            return ()  # torn: nobody knows which root it needs
        needed = [one.image for one in joined if one is not None]
        return roots.superfluous(place, (place.setup() or {}).get("image"), needed)

    def _remove_superfluous(self, place: Place) -> None:
        for name in self._superfluous(place):
            self._remove_root(place, name)

    @staticmethod
    def _remove_root(place: Place, name: str) -> None:
        try:
            left = helpers.end(roots.path_of(place, name))
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

    # -- looking after it --

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Attachments whose pod is gone, and roots that nobody needs."""
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

    def mend(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Runs ``del`` for such attachments, and removes such roots."""
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
    """The arguments of an ``add``, from its record; where that is torn, what can be known of them."""
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
    """The CNI result that ``add`` has printed. :raises NetworkError: it is none."""
    about = f'cannot join network "{network}": {roots.script_path("add")} printed'
    if len(report.stdout) > _RESULT_MAX:
        raise NetworkError(f"{about} more than {_RESULT_MAX} bytes instead of a result", network=network)
    try:
        value = loads(report.stdout)
    except ValueError:
        found = one_line(report.stdout)[:80] or "nothing"
        raise NetworkError(f"{about} no result but {found}", network=network) from None
    return parse_result(value, network)
