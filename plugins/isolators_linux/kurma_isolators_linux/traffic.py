"""Limits the bandwidth of a pod's interfaces, inside its network namespace (tc).

Outgoing packets wait in a token bucket of the interface. Incoming packets go through an interface of their own
(ifb) with such a bucket, so that they wait instead of being lost. Loopback is not limited. The kernel removes all
of it with the namespace. pyroute2 is slow to import; only pods with limits load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kurma_core.models.isolator import TrafficLimit

#: Prefix of the interfaces for incoming packets; the index of the pod's interface follows.
PREFIX = "kurma-in"

_UP, _LOOPBACK = 1, 8
_EVERYTHING = 3  # ETH_P_ALL
_BUCKET = 0x6B750000  # the handle that marks our own buckets
_ROOT, _INGRESS = 0xFFFFFFFF, 0xFFFF0000
# The burst and the longest queue, as parts of a second's bytes; below, their limits in bytes: a frame always fits.
_AT_ONCE, _WAITING = 1 / 50, 2 / 5
_FRAME, _LEAST_WAITING, _MOST_WAITING = 256, 1 << 16, 1 << 22


def limit_traffic(
    namespace: str, limits: Collection[TrafficLimit], held: Mapping[str, Collection[TrafficLimit]]
) -> tuple[str, ...]:
    """Implements :meth:`kurma_core.hookspecs.isolator.IsolatorHooks.limit_traffic`."""
    rates = _rates(limits)
    others = {name: _rates(_stricter(limits, given)) for name, given in held.items()}
    try:
        found = in_network_namespace(namespace, lambda: _hold_all(rates, others))
    except OSError as error:
        raise NetworkError(
            f"cannot limit the pod's traffic: {error.strerror or error}", errno=error.errno, path=namespace
        ) from error
    return tuple(sorted({name for name, _ in rates if name} - found))


def _rates(limits: Iterable[TrafficLimit]) -> dict[tuple[str, str], int]:
    rates: dict[tuple[str, str], int] = {}
    for limit in limits:
        key = limit.interface, limit.direction
        rates[key] = min(limit.rate, rates.get(key, limit.rate))
    return rates


def _stricter(limits: Iterable[TrafficLimit], held: Iterable[TrafficLimit]) -> list[TrafficLimit]:
    """The limits that are lower than those of their direction in ``held``."""
    rates = {limit.direction: limit.rate for limit in held}
    return [limit for limit in limits if limit.rate < rates.get(limit.direction, limit.rate + 1)]


def _hold_all(
    everywhere: dict[tuple[str, str], int], others: Mapping[str, dict[tuple[str, str], int]]
) -> set[str]:
    """Runs in the namespace. :returns: the interfaces that can be limited."""
    from pyroute2 import IPRoute, NetlinkError

    found = set()
    with IPRoute() as netlink:
        for link in list(netlink.get_links()):
            name = link.get_attr("IFLA_IFNAME")
            if link["flags"] & _LOOPBACK or not link["flags"] & _UP or name.startswith(PREFIX):
                continue
            found.add(name)
            rates = others.get(name, everywhere)
            try:
                _hold_out(netlink, link, _lowest(rates, name, "out"))
                _hold_in(netlink, link, _lowest(rates, name, "in"))
            except NetlinkError as error:
                raise NetworkError(
                    f"cannot limit the traffic of the pod's interface {name}: {error.args[-1]}",
                    hint="the kernel's modules sch_tbf, sch_ingress, cls_u32, act_mirred and ifb are needed",
                    errno=error.code,
                ) from error
    return found


def _lowest(rates: dict[tuple[str, str], int], name: str, direction: str) -> int | None:
    return min((rates[key] for key in ((name, direction), ("", direction)) if key in rates), default=None)


def _hold_out(netlink: Any, link: Any, rate: int | None) -> None:
    index = link["index"]
    if rate is not None:
        _put_bucket(netlink, link, rate)
    elif any(one["handle"] == _BUCKET for one in netlink.get_qdiscs(index=index)):
        netlink.tc("del", index=index, parent=_ROOT, handle=_BUCKET)


def _hold_in(netlink: Any, link: Any, rate: int | None) -> None:
    index = link["index"]
    name = f"{PREFIX}{index}"
    through = netlink.link_lookup(ifname=name)
    if rate is None:
        if through:
            netlink.tc("del", "ingress", index)
            netlink.link("del", index=through[0])
        return
    if not through:
        netlink.link("add", ifname=name, kind="ifb", mtu=link.get_attr("IFLA_MTU"))
        through = netlink.link_lookup(ifname=name)
    (other,) = netlink.get_links(through[0])
    _put_bucket(netlink, other, rate)
    if not other["flags"] & _UP:
        netlink.link("set", index=through[0], state="up")
    if any(one["handle"] == _INGRESS for one in netlink.get_qdiscs(index=index)):
        return
    netlink.tc("add", "ingress", index)
    netlink.tc(
        "add-filter",
        "u32",
        index,
        parent=_INGRESS,
        protocol=_EVERYTHING,
        prio=1,
        target=0,
        keys=["0x0/0x0+0"],
        action=[{"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": through[0]}],
    )


def _put_bucket(netlink: Any, link: Any, rate: int) -> None:
    """Puts a token bucket on the packets that the interface sends."""
    at_once = max(int(rate * _AT_ONCE), link.get_attr("IFLA_MTU") + _FRAME)
    waiting = min(max(int(rate * _WAITING), _LEAST_WAITING), _MOST_WAITING)
    netlink.tc("replace", "tbf", link["index"], handle=_BUCKET, rate=rate, burst=at_once, limit=waiting)
