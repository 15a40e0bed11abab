"""Converts isolators of the pod manifest to plans that the stager's inside applies (App Container Executor,
Isolators).

Unsupported isolators that protect the host from an app are refused; other unknown isolators are ignored with a
note, as the App Container Executor requires.
"""

from __future__ import annotations

from kurma_core.linux import capabilities
from kurma_stager_default.stage1.place import Stage1Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.linux.cgroups import Layout
    from kurma_stager_default.stage1.arguments import RunArguments

    Plan = dict[str, Any]

_FACTORS = {
    **{unit: 1 << 10 * power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    "K": 1000,
    "": 1,
}
#: Microseconds.
_PERIOD = 100_000
_SHORTEST_QUOTA = 1_000
_USUAL_SHARES, _USUAL_WEIGHT = 1024, 100
_SHARES = (2, 262_144)
_SECCOMP = "os/linux/seccomp-"
#: Isolators that protect the host from an app, and that this stage1 does not support.
_WALLS = (_SECCOMP, "os/linux/selinux", "os/linux/apparmor")


def plan_of(
    isolators: list[dict[str, Any]],
    where: str,
    layout: Layout,
    note: Callable[[str], None],
    wanted: RunArguments | None = None,
) -> Plan:
    """The plan for the isolators.

    :param where: the app or the pod, for messages.
    :param wanted: the restrictions that the user has switched off.
    :raises Stage1Error: an isolator is malformed, or cannot be applied.
    """
    plan: Plan = {"version": 1, "cgroup": []}
    given = {isolator.get("name"): isolator.get("value") for isolator in isolators}
    for name, value in given.items():
        apply = _KNOWN.get(str(name))
        try:
            if apply is not None:
                apply(plan, value, layout)
            elif wanted is not None and wanted.no_seccomp and str(name).startswith(_SECCOMP):
                continue
            elif str(name).startswith(_WALLS):
                raise Stage1Error("this stage1 cannot keep to it")
            else:
                note(f"{where}: isolator {name} is not known to this stage1, and ignored")
        except Stage1Error as error:
            raise Stage1Error(f"{where}: isolator {name}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Stage1Error(f"{where}: isolator {name}: not understood: {value!r}") from None
    if wanted is not None:
        _open(plan, wanted)
    return plan


def _open(plan: Plan, wanted: RunArguments) -> None:
    """Applies the ``--disable-…`` options, which remove restrictions from all apps."""
    if wanted.all_capabilities:
        plan["capabilities"] = capabilities.names(capabilities.bounding())
        plan.pop("ambient", None)
    if wanted.open_paths:
        plan["privileged"] = True
    plan["keyrings"] = wanted.no_seccomp


def _retain(plan: Plan, value: Any, _: Layout) -> None:
    plan["capabilities"] = plan["ambient"] = capabilities.names(
        [capabilities.parse(name) for name in value["set"]]
    )


def _remove(plan: Plan, value: Any, _: Layout) -> None:
    removed = {capabilities.parse(name) for name in value["set"]}
    plan["capabilities"] = capabilities.names(capabilities.DEFAULT_SET - removed)


def _no_new_privileges(plan: Plan, value: Any, _: Layout) -> None:
    if not isinstance(value, bool):
        raise ValueError
    plan["noNewPrivileges"] = value


def _oom_score(plan: Plan, value: Any, _: Layout) -> None:
    if isinstance(value, bool) or not -1000 <= int(value) <= 1000:
        raise ValueError
    plan["oomScoreAdj"] = int(value)


def _memory(plan: Plan, value: Any, layout: Layout) -> None:
    version = _version(layout, "memory")
    for key, files in (("limit", ("memory.limit_in_bytes", "memory.max")), ("request", _LOW)):
        if value.get(key) is not None:
            _set(plan, "memory", files[version - 1], str(_quantity(value[key])))


_LOW = ("memory.soft_limit_in_bytes", "memory.low")


def _cpu(plan: Plan, value: Any, layout: Layout) -> None:
    version = _version(layout, "cpu")
    request, limit = value.get("request"), value.get("limit")
    if request is not None or limit is not None:
        _share(plan, _quantity(limit if request is None else request, 1000) * _USUAL_SHARES // 1000, version)
    if limit is not None:
        quota = max(_SHORTEST_QUOTA, _quantity(limit, 1000) * _PERIOD // 1000)
        if version == 1:
            _set(plan, "cpu", "cpu.cfs_period_us", str(_PERIOD))
            _set(plan, "cpu", "cpu.cfs_quota_us", str(quota))
        else:
            _set(plan, "cpu", "cpu.max", f"{quota} {_PERIOD}")


def _shares(plan: Plan, value: Any, layout: Layout) -> None:
    _share(plan, int(value), _version(layout, "cpu"))


def _share(plan: Plan, shares: int, version: int) -> None:
    shares = min(max(shares, _SHARES[0]), _SHARES[1])
    if version == 1:
        _set(plan, "cpu", "cpu.shares", str(shares))
    else:
        weight = min(max(round(shares * _USUAL_WEIGHT / _USUAL_SHARES), 1), 10_000)
        _set(plan, "cpu", "cpu.weight", str(weight))


def _set(plan: Plan, controller: str, file: str, value: str) -> None:
    plan["cgroup"].append({"controller": controller, "file": file, "value": value})


def _version(layout: Layout, controller: str) -> int:
    hierarchy = layout.of(controller)
    if hierarchy is None:
        raise Stage1Error(
            f"there is no cgroup controller {controller} for this pod: it wants one that is delegated, with no "
            "process in it but this pod's"
        )
    return hierarchy.version


def _quantity(value: Any, scale: int = 1) -> int:
    """A quantity in base units, times ``scale``, rounded up."""
    text = str(value)
    number = text.rstrip("KMGTPEkmi")
    unit = text[len(number) :]
    if unit == "m":
        return -(-int(number) * scale // 1000)
    whole, _, part = number.partition(".")
    found: int = int(whole + part) * _FACTORS[unit] * scale
    parts: int = 10 ** len(part)
    return -(-found // parts)


_KNOWN: dict[str, Callable[[Plan, Any, Layout], None]] = {
    "os/linux/capabilities-retain-set": _retain,
    "os/linux/capabilities-remove-set": _remove,
    "os/linux/no-new-privileges": _no_new_privileges,
    "os/linux/oom-score-adj": _oom_score,
    "os/linux/cpu-shares": _shares,
    "resource/memory": _memory,
    "resource/cpu": _cpu,
}
