"""Callers of the API: checks their rights, redacts what read-only callers may not see, and counts connections."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.appc.template import without_passwords
from kurma_core.errors import BusyError, PrivilegeError

if TYPE_CHECKING:
    from kurma_core.api.operations import Operation

_LOG = logging.getLogger("kurmad")
#: Keys whose values are hidden from read-only clients, at any depth, each with the replacement: manifests contain
#: the environment of apps, configurations the credentials of plugins, metadata the path of a token, and words of
#: commands and the output of health checks may be passwords.
_HIDDEN: Mapping[str, Any] = {
    "manifest": {},
    "config": {},
    "settings": {},
    "capabilities": {},
    "environment": [],
    "command": [],
    "metadata": None,
    "raw": None,
    "output": "",
}
#: Keys whose values may be addresses with a password in them: images that are not fetched yet are named by
#: locator.
_ADDRESSES = ("locator", "url", "name")
#: Connections that wait for a request or are served: of all, of all but root, of all pods, of a user, of a pod.
SHORT = (512, 448, 256, 128, 16)
#: Connections that last, as waits for a pod's end, followed logs, and streams: in the same order.
LASTING = (2048, 1920, 1024, 512, 64)


class Peer:
    """The process that has connected.

    :param uid: of its user.
    :param rights: ``full`` or ``read``.
    :param pod: UUID of the pod, and ``app`` name of the app, whose API socket it uses; None: it uses the host's.
    """

    def __init__(self, uid: int, pid: int, rights: str, pod: str | None = None, app: str | None = None) -> None:
        self.uid = uid
        self.pid = pid
        self.rights = rights
        self.pod = pod
        self.app = app

    def __str__(self) -> str:
        whose = "" if self.pod is None else f"pod {self.pod}, app {self.app}, "
        return f"{whose}user {self.uid}, process {self.pid}"


def check_rights(peer: Peer, operation: Operation, request: str) -> None:
    """Checks a caller's rights; logs a request that changes something, or is refused, with its caller.

    :param request: its method and path, without the query and the body, which may contain secrets.
    :raises PrivilegeError: the caller may not use the operation.
    """
    allowed = operation.rights == "read" or peer.rights == "full"
    if operation.verb != "GET" or not allowed:
        _LOG.info("%s %s %s", peer, "asks for" if allowed else "is refused", request)
    if not allowed:
        hint = None
        if peer.pod is not None:
            hint = "set host/api-access for the app in kurma.yml, not host/api-access=read"
        raise PrivilegeError(f"{operation.verb} {operation.path} needs more than read access", hint=hint)


def redacted(value: Any) -> Any:
    """Removes secrets, and what may hold some, for read-only clients (``read``)."""
    if isinstance(value, list | tuple):
        return [redacted(one) for one in value]
    if not hasattr(value, "items"):
        return value
    found = {}
    for key, one in value.items():
        if key in _HIDDEN:
            found[key] = _HIDDEN[key]
        elif key in _ADDRESSES and isinstance(one, str):
            found[key] = without_passwords(one)
        else:
            found[key] = redacted(one)
    return found


class Quota:
    """Counts connections of one kind, so that no client's connections keep others out.

    :param most: of all, :param others: of all but root, :param pods: of all pods, :param user: of a user,
    :param pod: of a pod.
    """

    def __init__(self, most: int, others: int, pods: int, user: int, pod: int) -> None:
        self._most, self._others, self._pods, self._user, self._pod = most, others, pods, user, pod
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held["all"]

    def take(self, peer: Peer, *, enforce: bool = True) -> None:
        """Counts one more connection. :param enforce: False: even beyond the limits. :raises BusyError: a limit is
        reached."""
        limits = self._limits(peer)
        with self._lock:
            for whose, most in limits:
                if enforce and self._held[whose] >= most:
                    words = "" if whose == "all" else f" of {whose}"
                    raise BusyError(
                        f"kurmad has reached its limit of {most} connections{words}", hint="try again in a moment"
                    )
            self._held.update(whose for whose, _ in limits)

    def give_back(self, peer: Peer) -> None:
        with self._lock:
            self._held.subtract(whose for whose, _ in self._limits(peer))
            self._held += Counter()  # drops the zeros

    def _limits(self, peer: Peer) -> list[tuple[str, int]]:
        if peer.pod is not None:
            own = [(f"pod {peer.pod}", self._pod), ("pods", self._pods), ("all but root", self._others)]
        elif peer.uid != 0:
            own = [(f"user {peer.uid}", self._user), ("all but root", self._others)]
        else:
            own = []
        return [*own, ("all", self._most)]
