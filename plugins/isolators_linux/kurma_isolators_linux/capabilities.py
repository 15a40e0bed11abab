"""Compiles an app's capabilities: ``os/linux/capabilities-remove-set`` and ``-retain-set``,
``kurma.io/capabilities``.

The first two implement App Container Executor, Linux Isolators. All define the bounding set. Root gets all of it.
A user other than root gets nothing from a remove set, the capabilities of a retain set by way of the ambient set,
and from ``kurma.io/capabilities`` exactly the ambient set that it names (docs/reference/isolators.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.linux import capabilities as linux
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.schema import describe, nearest

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

#: Of App Container's fourteen, those that podman leaves out: to write to the host's audit log, to make device
#: nodes, to send raw packets.
_NOT_FROM_REGISTRIES = frozenset(linux.BITS[f"CAP_{name}"] for name in ("AUDIT_WRITE", "MKNOD", "NET_RAW"))

#: The two forms of ``kurma.io/capabilities``.
_FORMS = (("bounding", "ambient"), ("add", "drop", "ambient"))
#: Stands for the word ``ALL``.
_ALL = -1


def remove_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles a remove set: the default set of the image's kind without these capabilities."""
    left = default_set(host) - _read(name, value)
    return Compiled(IsolatorPlan(capabilities=tuple(linux.names(left))))


def retain_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles a retain set: exactly these capabilities, as far as Kurma has them itself."""
    wanted = _read(name, value)
    kept = wanted & available(host)
    names = tuple(linux.names(kept))
    plan = IsolatorPlan(capabilities=names, ambient=names)
    if kept == wanted:
        return Compiled(plan)
    lacking = " ".join(linux.names(wanted - kept))
    return Compiled(plan, "modified", f"without {lacking}, which Kurma does not have here itself")


def exact(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles ``kurma.io/capabilities``: the bounding set and the ambient set. The bounding set is given whole,
    or as capabilities to add to the default of the image's kind and to drop from it. It contains the ambient
    set."""
    wanted, ambient = _exact(name, value, host)
    kept = wanted & available(host)
    plan = IsolatorPlan(capabilities=tuple(linux.names(kept)), ambient=tuple(linux.names(ambient & kept)))
    # "ALL" means all that there are: only a capability that was named can be lacking.
    lacking = (wanted - kept) if _named(value, "bounding", "add", "ambient") else frozenset()
    if not lacking:
        return Compiled(plan)
    note = f"without {' '.join(linux.names(lacking))}, which Kurma does not have here itself"
    return Compiled(plan, "modified", note)


def exact_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for every capability beyond the default of the image's kind."""
    wanted, _ = _exact(name, value, host)
    return tuple(Power(f"{name}={each}") for each in linux.names(wanted - default_set(host)))


def _exact(name: str, value: Any, host: IsolatorHost) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the bounding set and the ambient set. :raises IsolatorError: the value is wrong."""
    if not isinstance(value, dict) or not any(set(value) <= set(form) for form in _FORMS):
        got = f"an object of {', '.join(map(describe, value))}" if isinstance(value, dict) else describe(value)
        raise IsolatorError(
            f"isolator {name}: expected an object with lists bounding and ambient, or add, drop and ambient, got "
            f"{got}",
            hint='for instance {"add": ["CAP_NET_ADMIN"], "drop": ["ALL"]}',
        )
    sets = {key: _words(f"{name}: {key}", words) for key, words in value.items()}
    whole, none = frozenset(range(len(linux.NAMES))), frozenset[int]()
    ambient = whole if _ALL in sets.get("ambient", none) else sets.get("ambient", none)
    if "bounding" in value:
        bounding = whole if _ALL in sets["bounding"] else sets["bounding"]
        return bounding | ambient, ambient
    add, drop = sets.get("add", none), sets.get("drop", none)
    base = whole if _ALL in add else default_set(host)
    base = none if _ALL in drop else base
    return ((base | add) - drop - {_ALL}) | ambient, ambient


def _named(value: Any, *keys: str) -> bool:
    """Whether some list names single capabilities."""
    words = [str(word).upper() for key in keys for word in value.get(key, ())]
    return any(word not in ("ALL", "CAP_ALL") for word in words)


def _words(where: str, words: Any) -> frozenset[int]:
    """Reads a list of capabilities, in which ``ALL`` becomes :data:`_ALL`."""
    if not isinstance(words, list):
        raise IsolatorError(f"isolator {where}: expected a list of capabilities, got {describe(words)}")
    return frozenset(
        [
            _ALL if isinstance(word, str) and word.upper() in ("ALL", "CAP_ALL") else _bit(where, word)
            for word in words
        ]
    )


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for every capability of a retain set beyond the default of the image's kind."""
    return tuple(Power(f"{name}={each}") for each in linux.names(_read(name, value) - default_set(host)))


def default_set(host: IsolatorHost) -> frozenset[int]:
    """Returns the default capabilities of an app: App Container's fourteen, or podman's eleven if the image came
    from a registry."""
    return linux.DEFAULT_SET - _NOT_FROM_REGISTRIES if host.fewer_capabilities else linux.DEFAULT_SET


def default_value(*, fewer_capabilities: bool) -> dict[str, list[str]]:
    """Returns the value of ``os/linux/capabilities-remove-set`` that compiles to :func:`default_set`."""
    return {"set": linux.names(_NOT_FROM_REGISTRIES) if fewer_capabilities else []}


def _read(name: str, value: Any) -> frozenset[int]:
    found = value.get("set") if isinstance(value, dict) else None
    if not isinstance(found, list) or len(value) != 1:
        got = f"an object of {', '.join(map(describe, value))}" if isinstance(value, dict) else describe(value)
        raise IsolatorError(
            f'isolator {name}: expected {{"set": [capabilities]}}, got {got}',
            hint='for instance {"set": ["CAP_NET_BIND_SERVICE"]}',
        )
    return frozenset([_bit(name, each) for each in found])


def _bit(name: str, word: Any) -> int:
    try:
        if isinstance(word, str):
            return linux.parse(word)
    except ValueError:
        pass
    hint = "they are named as in capabilities(7): CAP_CHOWN"
    if isinstance(word, str):
        # Compared without the common prefix CAP_, which would make all names similar.
        upper = word.upper().removeprefix("CAP_")
        near = nearest(upper, [each.removeprefix("CAP_") for each in linux.NAMES])
        hint = f"did you mean CAP_{near}?" if near else hint
        if upper == "ALL":
            hint = (
                "there is no word for all of them: name each, or give os/linux/privileged"
                if name.endswith("retain-set")
                else "to remove all, keep none: --isolator 'os/linux/capabilities-retain-set={\"set\": []}'"
            )
    raise IsolatorError(f"isolator {name}: no such capability: {describe(word)}", hint=hint)


def available(host: IsolatorHost) -> frozenset[int]:
    """Returns the capabilities that apps can get: Kurma's own, or, in a user namespace, all that the kernel
    has."""
    # Every app's defaults import this module; only a retain set needs procfs.
    from kurma_isolators_linux import procfs

    if not host.userns:
        return procfs.capabilities(host)
    return frozenset(range(procfs.number(host, "proc/sys/kernel/cap_last_cap", len(linux.NAMES) - 1) + 1))


#: The isolators of this module, by name; an app has one of them at most.
SETS = {
    "os/linux/capabilities-retain-set": retain_set,
    "os/linux/capabilities-remove-set": remove_set,
    "kurma.io/capabilities": exact,
}
