"""os/linux/seccomp-retain-set and os/linux/seccomp-remove-set (X4).

App Container Executor (0.8.11), Linux Isolators: a call that is not allowed ends the app with SIGSYS, or fails
with ``errno`` where the isolator names one. The filter is put on right before the app's program is executed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.schema import describe
from kurma_isolators_linux import calls, seccomp_profile
from kurma_isolators_linux import seccomp_program as program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.hookspecs.isolator import IsolatorHost

RETAIN = "os/linux/seccomp-retain-set"
REMOVE = "os/linux/seccomp-remove-set"
#: Kept whatever is retained: to execute the app's program, to come back from a signal's handler, to end.
LIFE = ("execve", "exit", "exit_group", "restart_syscall", "rt_sigreturn")
_ALL, _EMPTY = "@appc.io/all", "@appc.io/empty"


def retain_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """These calls are allowed, and no others. What the default profile says of a call's arguments holds, too.
    ``@appc.io/all`` in it: there is no filter."""
    names, refusal = _read(name, value)
    if _ALL in names:
        return Compiled(IsolatorPlan(), note="every system call is allowed")
    numbers = seccomp_profile.numbers_here()
    if numbers is None:
        return seccomp_profile.unknown_machine()
    held = seccomp_profile.granted(host)
    allowed, note = _resolve(name, names - {_EMPTY}, numbers, held)
    added = [call for call in LIFE if call not in allowed]
    leaves = {numbers[call]: program.ALLOW for call in (*allowed, *added) if call in numbers}
    if not seccomp_profile.unfiltered(host):
        usual = seccomp_profile.leaves_of(numbers, held)
        by_arguments = [numbers[call] for call in seccomp_profile.BY_ARGUMENTS if call in allowed]
        leaves.update({number: usual[number] for number in by_arguments})
    kept = f"kept besides: {', '.join(added)}" if added else ""
    filtered = program.assemble(seccomp_profile.machine(), leaves, refusal, refusal)
    return Compiled(IsolatorPlan(seccomp=filtered), note="; ".join([text for text in (kept, note) if text]))


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Of a retained set: each word that stands for a call which the default profile refuses to that app."""
    names, _ = _read(name, value)
    numbers = seccomp_profile.numbers_here()
    if seccomp_profile.unfiltered(host):
        return ()
    if _ALL in names:
        return (Power(f"{name}={_ALL}"),)
    if numbers is None:
        return tuple(Power(f"{name}={word}") for word in sorted(names - {_EMPTY}))
    held = seccomp_profile.granted(host)
    more = frozenset(seccomp_profile.refused(held)) & numbers.keys()
    found = {word: _resolve(name, frozenset([word]), numbers, held)[0] for word in sorted(names - {_EMPTY})}
    return tuple(Power(f"{name}={word}") for word, allowed in found.items() if allowed & more)


def remove_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """These calls are refused, and all that the default profile refuses. ``@appc.io/empty`` in it: that alone."""
    names, refusal = _read(name, value)
    if _EMPTY in names:
        return seccomp_profile.profile("kurma.io/seccomp-profile", "default", scope, host)
    numbers = seccomp_profile.numbers_here()
    if numbers is None:
        return seccomp_profile.unknown_machine()
    held = seccomp_profile.granted(host)
    removed, note = _resolve(name, names, numbers, held)
    if "execve" in removed:
        raise IsolatorError(
            f"isolator {name}: without execve no program of the app can be executed",
            hint=f"leave out {_ALL if _ALL in names else 'execve'}",
        )
    if seccomp_profile.unfiltered(host):
        leaves, unknown = dict.fromkeys(numbers.values(), program.ALLOW), program.ALLOW
    else:
        leaves, unknown = seccomp_profile.leaves_of(numbers, held), seccomp_profile.MISSING
    leaves.update({numbers[call]: refusal for call in removed if call in numbers})
    filtered = program.assemble(seccomp_profile.machine(), leaves, unknown, refusal)
    return Compiled(IsolatorPlan(seccomp=filtered), note=note)


def _read(name: str, value: Any) -> tuple[frozenset[str], program.Leaf]:
    """The names as they stand, and what becomes of a call that is not allowed."""
    expected = f'isolator {name}: expected {{"set": [calls…], "errno": NAME}}'
    if not isinstance(value, dict) or not isinstance(value.get("set"), list):
        raise IsolatorError(f"{expected}, got {describe(value)}")
    unknown = value.keys() - {"set", "errno"}
    if unknown:
        raise IsolatorError(f"{expected}, got {describe(min(unknown))} besides")
    for each in value["set"]:
        if not isinstance(each, str) or not each:
            raise IsolatorError(f"isolator {name}: expected names of system calls, got {describe(each)}")
    if not value["set"]:
        raise IsolatorError(f"isolator {name}: its set is empty", hint=f"write {_EMPTY} if that is meant")
    return frozenset(value["set"]), _refusal(name, value.get("errno"))


def _refusal(name: str, code: Any) -> program.Leaf:
    if code is None or code == "":
        return program.KILL
    import errno

    number = getattr(errno, code, None) if isinstance(code, str) and code.isupper() else None
    if not isinstance(number, int):
        hint = None
        if isinstance(code, str):
            hint = _nearest(code.upper(), errno.errorcode.values())
        raise IsolatorError(f"isolator {name}: there is no errno {describe(code)}", hint=hint)
    return program.error(number)


def _resolve(
    name: str, names: frozenset[str], numbers: Mapping[str, int], held: frozenset[str]
) -> tuple[frozenset[str], str]:
    """The calls that are meant, and a note of those that this machine has not.

    :param held: the app's capabilities.
    :raises IsolatorError: there is no call of that name on any machine.
    """
    found = {each for each in names if each in numbers}
    absent = []
    for each in sorted(names - found - {_ALL, _EMPTY}):
        if each.startswith("@"):
            found |= _group(name, each, numbers, held)
        elif each in calls.elsewhere(seccomp_profile.machine()):
            absent.append(each)
        else:
            hint = _nearest(each, [*numbers, *calls.elsewhere(seccomp_profile.machine())])
            raise IsolatorError(f"isolator {name}: there is no system call {describe(each)}", hint=hint)
    if _ALL in names:
        found |= numbers.keys()
    return frozenset(found), f"not on this machine: {', '.join(absent)}" if absent else ""


def _group(name: str, wildcard: str, numbers: Mapping[str, int], held: frozenset[str]) -> frozenset[str]:
    from kurma_isolators_linux import seccomp_sets

    known = seccomp_sets.wildcards()
    if wildcard not in known:
        raise IsolatorError(
            f"isolator {name}: there is no set of system calls {describe(wildcard)}",
            hint=_nearest(wildcard, [_ALL, _EMPTY, *known]) or f"there are {', '.join([_ALL, _EMPTY, *known])}",
        )
    return seccomp_sets.calls(wildcard, numbers.keys(), held)


def _nearest(word: str, known: Any) -> str | None:
    import difflib

    found = difflib.get_close_matches(word, known, 1)
    return f"did you mean {found[0]}?" if found else None
