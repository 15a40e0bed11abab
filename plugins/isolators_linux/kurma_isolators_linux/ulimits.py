"""Compiles resource limits of an app's processes: ``kurma.io/ulimits``.

An app may raise a soft limit up to the hard one by itself, and only lower the hard one. So the hard limit is the
limit proper: one above Kurma's own, with which apps start, is a power, and takes CAP_SYS_RESOURCE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import RLIMITS, IsolatorPlan
from kurma_core.schema import describe
from kurma_isolators_linux import procfs

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

_UNLIMITED = -1
_MOST = (1 << 63) - 1
_EXAMPLE = 'for instance {"nofile": [1024, 4096], "core": 0}; -1 is unlimited'
#: Columns of ``/proc/self/limits``: the kernel pads the name to 25 characters, and the soft limit to 20.
_HARD_COLUMN = 25 + 1 + 20


def ulimits(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles limits by the kernel's names, such as ``{"nofile": [1024, 4096], "core": 0}``."""
    from kurma_core.linux.capabilities import BITS

    found = _limits(name, value)
    may_raise = BITS["CAP_SYS_RESOURCE"] in procfs.capabilities(host)
    for limit, (_, hard) in found.items():
        if limit == "nofile" and _above(hard, most := procfs.number(host, "proc/sys/fs/nr_open", _UNLIMITED)):
            raise IsolatorError(
                f"isolator {name}: nofile: a hard limit of {_word(hard)} is above the kernel's maximum, {most}",
                hint=f"give at most {most}, or raise the maximum: sysctl fs.nr_open",
            )
        own = None if may_raise else _own_hard_limit(host, limit)
        if own is not None and _above(hard, own):
            raise IsolatorError(
                f"isolator {name}: {limit}: a hard limit of {_word(hard)} is above Kurma's own, {own}, and Kurma "
                "has no CAP_SYS_RESOURCE to raise it",
                hint=f"give at most {own}",
            )
    amounts = ", ".join([f"{limit} {_word(soft)}:{_word(hard)}" for limit, (soft, hard) in found.items()])
    return Compiled(IsolatorPlan(rlimits=found), amounts=amounts)


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for each hard limit above Kurma's own, and for any if its own cannot be read."""
    own = {limit: _own_hard_limit(host, limit) for limit in RLIMITS}
    return tuple(
        Power(f"{name}={limit}")
        for limit, (_, hard) in _limits(name, value).items()
        if (most := own[limit]) is None or _above(hard, most)
    )


def _above(limit: int, most: int) -> bool:
    return most != _UNLIMITED and (limit == _UNLIMITED or limit > most)


def _word(limit: int) -> str:
    return "unlimited" if limit == _UNLIMITED else str(limit)


def _own_hard_limit(host: IsolatorHost, limit: str) -> int | None:
    """Reads Kurma's own hard limit, which is also its stagers'; None: it cannot be read."""
    lines = (procfs.text(host, "proc/self/limits") or "").splitlines()[1:]
    if len(lines) != len(RLIMITS):
        return None
    # A line for each limit, in the order of their numbers.
    word = lines[RLIMITS.index(limit)][_HARD_COLUMN:].split()[:1]
    if word == ["unlimited"]:
        return _UNLIMITED
    return int(word[0]) if word and word[0].isdecimal() else None


def _limits(name: str, value: Any) -> dict[str, tuple[int, int]]:
    """Reads soft and hard limit by name. :raises IsolatorError: the value is wrong."""
    if not isinstance(value, dict):
        raise IsolatorError(f"isolator {name}: expected an object of limits, got {describe(value)}", hint=_EXAMPLE)
    found = {}
    for limit, pair in value.items():
        if limit not in RLIMITS:
            raise IsolatorError(
                f"isolator {name}: there is no limit {describe(limit)}", hint=f"these are: {', '.join(RLIMITS)}"
            )
        soft, hard = pair if isinstance(pair, list) and len(pair) == 2 else (pair, pair)
        for number in (soft, hard):
            if not isinstance(number, int) or isinstance(number, bool) or not _UNLIMITED <= number <= _MOST:
                raise IsolatorError(
                    f"isolator {name}: {limit}: expected a whole number from -1 to {_MOST}, or [soft, hard], got "
                    f"{describe(pair)}",
                    hint=_EXAMPLE,
                )
        if _above(soft, hard):
            raise IsolatorError(
                f"isolator {name}: {limit}: the soft limit, {_word(soft)}, is above the hard limit, {_word(hard)}"
            )
        found[limit] = (soft, hard)
    return found
