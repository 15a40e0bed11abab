"""What becomes of an isolator that asks for a network namespace, or for the host's network (E8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import Compiled
from kurma_core.models import IsolatorPlan

if TYPE_CHECKING:
    from kurma_core.hookspecs import IsolatorHost


class NetworkNamespace:
    """Reports on ``os/linux/namespaces`` {"net": …}, where no plugin looks after it; it changes nothing.

    The host's network is given by root's word (``--net host``, ``networks`` of a pod's file), and never because an
    image asks for it.

    :param host_network: the pod has the host's.
    """

    names: tuple[str, ...] = ("os/linux/namespaces",)

    def __init__(self, host_network: bool) -> None:
        self._host_network = host_network

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        """:raises IsolatorError: the value is no object, or ``net`` is neither ``host`` nor ``private``."""
        wanted = value.get("net") if isinstance(value, dict) else None
        if not isinstance(value, dict) or wanted not in (None, "host", "private"):
            raise IsolatorError(f'isolator {name}: expected an object with "net": "host" or "private"')
        note = ""
        if set(value) - {"net"}:
            note = "no installed plugin looks after " + ", ".join(sorted(set(value) - {"net"}))
        elif wanted == "host" and not self._host_network:
            note = "the host's network is not for an image to ask for; --net host gives it"
        elif wanted == "private" and self._host_network:
            note = "the pod was given the host's network"
        return Compiled(IsolatorPlan(), "ignored" if note else "enforced", note)
