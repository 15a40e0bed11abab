"""Compiles kernel settings of a pod's own namespaces: ``os/unix/sysctl``.

Implements App Container Executor, Unix Isolators. Accepts only settings of namespaces that the pod does not share
with the host; all others would change the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import OWN_SYSCTLS, IsolatorPlan, sysctl_namespace
from kurma_core.schema import describe

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

_LONGEST = 1000
#: Groups that may open ICMP echo sockets: ``ping`` then works without CAP_NET_RAW. Docker's value; podman's "0 0"
#: leaves it to group 0.
PING_GROUPS = ("net.ipv4.ping_group_range", "0 2147483647")
#: A dot in a name is a slash in a path, and the other way round, as in sysctl(8): ``net.ipv4.conf.eth0/7.mtu``.
_SWAPPED = {ord("."): "/", ord("/"): "."}


def sysctl(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles settings such as ``{"net.ipv4.ip_forward": "1"}``."""
    if not isinstance(value, dict):
        raise IsolatorError(
            f"isolator {name}: expected an object of settings, got {describe(value)}",
            hint='for instance {"net.ipv4.ip_forward": "1"}',
        )
    shared = host.host_namespaces
    found: dict[str, str] = {}
    for key, setting in value.items():
        dotted = _dotted(name, key)
        if dotted in found:
            raise IsolatorError(f"isolator {name}: {dotted} is given twice")
        _check(name, dotted, shared)
        found[dotted] = _text(name, dotted, setting)
    if "net" not in shared:
        found.setdefault(*PING_GROUPS)
    return Compiled(IsolatorPlan(sysctls=found))


def _dotted(name: str, key: str) -> str:
    """Returns the key in the form with dots. The first separator tells which form the key has."""
    dot, slash = key.find("."), key.find("/")
    dotted = key.translate(_SWAPPED) if slash >= 0 and (dot < 0 or slash < dot) else key
    parts = dotted.split(".")
    if not all(part.strip("/") and part.isprintable() and not set(part) & set(" \\") for part in parts):
        raise IsolatorError(f"isolator {name}: not a name of a setting: {describe(key)}")
    return dotted


def _check(name: str, key: str, shared: frozenset[str]) -> None:
    """Checks that the setting belongs to a namespace of the pod's own. :raises IsolatorError: it does not."""
    if key == "kernel.hostname":
        raise IsolatorError(f"isolator {name}: {key} is the pod's host name", hint="give it with --hostname")
    kind = sysctl_namespace(key)
    if kind is None:
        raise IsolatorError(
            f"isolator {name}: {key} is not a setting of a pod's own", hint=f"these are: {OWN_SYSCTLS}"
        )
    if kind in shared:
        whose = "network" if kind == "net" else f"{'user' if kind == 'user' else kind.upper()} namespace"
        raise IsolatorError(
            f"isolator {name}: {key} would be the host's: the pod is in the host's {whose}",
            hint=f"leave it out, or give the pod a {whose} of its own",
        )


def _text(name: str, key: str, value: Any) -> str:
    line = isinstance(value, str) and value and len(value) <= _LONGEST
    if not line or not value.replace("\t", " ").isprintable():
        raise IsolatorError(
            f"isolator {name}: {key}: expected a line of text, got {describe(value)}",
            hint=f'a value is a string, for instance {{"{key}": "1"}}',
        )
    return str(value)
