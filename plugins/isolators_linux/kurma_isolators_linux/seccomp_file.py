"""Compiles a seccomp profile file of the OCI runtime specification: ``kurma.io/seccomp-profile`` with a ``path``.

The rules for one call are evaluated as libseccomp and runc do it: a rule without conditions wins over rules with
conditions; of several rules with conditions, the first that matches decides; several conditions on one argument
are alternatives. Calls that are newer than all calls in the file fail with ENOSYS where the file refuses unknown
calls, so that libraries fall back on older calls.

``includes`` and ``excludes`` are those of the profiles of Docker, podman and CRI-O: capabilities of the app, the
machine, and the kernel's version.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.json_text import JsonError, loads
from kurma_core.schema import describe
from kurma_core.value import frozen
from kurma_isolators_linux import procfs
from kurma_isolators_linux import seccomp_bpf as program

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kurma_core.hookspecs.isolator import IsolatorHost

Json = Any
#: Largest file, bytes.
_LIMIT = 1 << 20
#: The kernel's longest program, in instructions of 8 bytes.
_LONGEST = 4096
_ERRNO, _TRACE = "SCMP_ACT_ERRNO", "SCMP_ACT_TRACE"
#: Action → the filter's result without the lower 16 bits.
_ACTIONS = {
    "SCMP_ACT_ALLOW": 0x7FFF0000,
    "SCMP_ACT_LOG": 0x7FFC0000,
    _TRACE: 0x7FF00000,
    _ERRNO: 0x00050000,
    "SCMP_ACT_TRAP": 0x00030000,
    "SCMP_ACT_KILL": 0x00000000,
    "SCMP_ACT_KILL_THREAD": 0x00000000,
    "SCMP_ACT_KILL_PROCESS": 0x80000000,
}
_LENIENT = ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG", _TRACE)
_NOTIFY = "SCMP_ACT_NOTIFY"
_FLAGS = ("SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC")
#: Machine → its names in ``includes`` and its architecture in ``architectures``.
_MACHINES = {
    "x86_64": (("amd64", "x86_64"), "SCMP_ARCH_X86_64"),
    "aarch64": (("arm64", "aarch64"), "SCMP_ARCH_AARCH64"),
    "arm64": (("arm64", "aarch64"), "SCMP_ARCH_AARCH64"),
}
_KEYS = frozenset(
    (
        *("defaultAction", "defaultErrnoRet", "defaultErrno", "architectures", "archMap", "flags", "syscalls"),
        *("listenerPath", "listenerMetadata"),
    )
)
_RULE_KEYS = frozenset(("names", "name", "action", "errnoRet", "errno", "args", "includes", "excludes", "comment"))
_FILTER_KEYS = frozenset(("caps", "arches", "minKernel"))


class _Rules:
    """The rules of one system call."""

    __slots__ = ("always", "conditional")

    def __init__(self) -> None:
        self.always: int | None = None
        self.conditional: list[tuple[tuple[program.Condition, ...], int]] = []


@frozen
class App:
    """The app that a profile is compiled for.

    :param machine: as in ``uname``. :param numbers: of that machine's calls, by name.
    :param capabilities: the app's. :param host: the host's properties.
    """

    machine: str
    numbers: Mapping[str, int]
    capabilities: Collection[str]
    host: IsolatorHost


def compile_file(name: str, path: str, app: App) -> tuple[bytes, str]:
    """Reads a profile from a file of the host and compiles it.

    :param name: the isolator's. :param path: absolute, on the host.
    :returns: the filter, and a note.
    :raises IsolatorError: the file cannot be read, or is not such a profile.
    """
    return _Reader(f"isolator {name}: {path}", app).compile(_read(name, path, app.host))


def _read(name: str, path: str, host: IsolatorHost) -> Json:
    where = f"isolator {name}: cannot read the seccomp profile {path}"
    try:
        # Without waiting for a FIFO's writer.
        fd = os.open(f"{host.root.rstrip('/')}{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        hint = "put the file there, or correct the path" if error.errno == errno.ENOENT else None
        raise IsolatorError(f"{where}: {(error.strerror or '').lower()}", hint=hint) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise IsolatorError(f"{where}: it is not a regular file")
    with open(fd, "rb") as file:
        text = file.read(_LIMIT + 1)
    if len(text) > _LIMIT:
        raise IsolatorError(f"{where}: {found.st_size} bytes are too many: at most {_LIMIT}")
    try:
        return loads(text)
    except JsonError as error:
        raise IsolatorError(f"{where}: {error}") from None


class _Reader:
    """Checks a profile, and collects its rules by the number of the call. :param where: begins each error."""

    def __init__(self, where: str, app: App) -> None:
        self._where = where
        self._held = app.capabilities
        self._host = app.host
        self._machine = app.machine
        self._numbers = app.numbers

    def compile(self, value: Json) -> tuple[bytes, str]:
        if not isinstance(value, dict):
            raise self._wrong("the profile", "an object", value)
        self._known("the profile", value, _KEYS)
        word = value.get("defaultAction")
        default = self._action("defaultAction", word, value.get("defaultErrnoRet"), value.get("defaultErrno"))
        self._architectures(value)
        notes = []
        for flag in self._strings("flags", value.get("flags")):
            if flag not in _FLAGS:
                raise self._wrong("flags", f"one of {', '.join(_FLAGS)}", flag)
            if flag == _FLAGS[0]:
                notes.append(f"{flag} has no effect")
        found: dict[int, _Rules] = {}
        rules = value.get("syscalls")
        if rules is not None and not isinstance(rules, list):
            raise self._wrong("syscalls", "a list", rules)
        for index, rule in enumerate(rules or ()):
            self._rule(f"syscalls[{index}]", rule, found, default)
        answer = program.result(default)
        unknown = answer
        leaves = dict.fromkeys(self._numbers.values(), answer)
        if found and word not in _LENIENT:
            # As runc: libraries take EPERM of a new call for an error, and ENOSYS for "use the older call".
            unknown = program.error(errno.ENOSYS)
            newest = max(found)
            leaves.update({number: unknown for number in leaves if number > newest})
        for number, its in found.items():
            leaves[number] = program.first_match(its.conditional, answer if its.always is None else its.always)
        # Numbers mean other calls there. A file without rules says the same of all architectures.
        foreign = program.KILL if found else answer
        code = program.assemble(self._machine, leaves, unknown, foreign)
        if len(code) > 8 * _LONGEST:
            raise IsolatorError(
                f"{self._where}: the filter has {len(code) // 8} instructions; the kernel takes {_LONGEST}"
            )
        return code, "; ".join(notes)

    def _rule(self, at: str, rule: Json, found: dict[int, _Rules], default: int) -> None:
        if not isinstance(rule, dict):
            raise self._wrong(at, "an object", rule)
        self._known(at, rule, _RULE_KEYS)
        names = self._strings(f"{at}.names", rule.get("names"))
        if "name" in rule:
            names += self._strings(f"{at}.name", [rule["name"]])
        if not names:
            raise IsolatorError(f"{self._where}: {at} names no system call")
        action = self._action(f"{at}.action", rule.get("action"), rule.get("errnoRet"), rule.get("errno"))
        sets = self._conditions(f"{at}.args", rule.get("args"))
        if not self._applies(at, rule) or action == default:
            return
        for name in names:
            number = self._numbers.get(name)
            if number is None:
                continue  # a call of other machines, or one that is newer than Kurma's table
            its = found.setdefault(number, _Rules())
            if sets:
                its.conditional += [(conditions, action) for conditions in sets]
            elif its.always is None:
                its.always = action
        for its in found.values():
            if its.always is not None:
                its.conditional.clear()

    def _conditions(self, at: str, args: Json) -> list[tuple[program.Condition, ...]]:
        """Returns the conditions that must hold together, for each alternative."""
        if args is None:
            return []
        if not isinstance(args, list):
            raise self._wrong(at, "a list", args)
        found = [self._condition(f"{at}[{index}]", one) for index, one in enumerate(args)]
        indices = [one.argument for one in found]
        if len(set(indices)) < len(indices):
            return [(one,) for one in found]
        return [tuple(found)] if found else []

    def _condition(self, at: str, value: Json) -> program.Condition:
        if not isinstance(value, dict):
            raise self._wrong(at, "an object", value)
        self._known(at, value, frozenset(("index", "value", "valueTwo", "op")))
        op = value.get("op")
        if not isinstance(op, str) or op not in program.COMPARISONS:
            raise self._wrong(f"{at}.op", f"one of {', '.join(program.COMPARISONS)}", op)
        index = self._number(f"{at}.index", value.get("index"), 5)
        first = self._number(f"{at}.value", value.get("value", 0), (1 << 64) - 1)
        second = self._number(f"{at}.valueTwo", value.get("valueTwo") or 0, (1 << 64) - 1)
        return program.Condition(index, op, first, second)

    def _action(self, at: str, word: Json, number: Json, name: Json) -> int:
        """Returns the filter's result for an action and its error number or name."""
        if word == _NOTIFY:
            raise IsolatorError(
                f"{self._where}: {at}: Kurma has no agent for {_NOTIFY}", hint="use another action in the profile"
            )
        if not isinstance(word, str) or word not in _ACTIONS:
            raise self._wrong(at, f"one of {', '.join(_ACTIONS)}", word)
        if word not in (_ERRNO, _TRACE):
            return _ACTIONS[word]
        if number is not None:
            return _ACTIONS[word] | self._number(f"{at}: its errno", number, 0xFFFF)
        if name:
            found = getattr(errno, name, None) if isinstance(name, str) and name[:1] == "E" else None
            if not isinstance(found, int):
                raise self._wrong(f"{at}: its errno", "a name of errno(3)", name)
            return _ACTIONS[word] | found
        return _ACTIONS[word] | errno.EPERM

    def _architectures(self, value: dict[str, Json]) -> None:
        """Refuses a profile that is for other machines alone."""
        listed = self._strings("architectures", value.get("architectures"))
        maps = value.get("archMap")
        if maps is not None and not (isinstance(maps, list) and all(isinstance(one, dict) for one in maps)):
            raise self._wrong("archMap", "a list of objects", maps)
        for one in maps or ():
            self._known("archMap", one, frozenset(("architecture", "subArchitectures")))
            listed += self._strings("archMap.architecture", [one.get("architecture")])
            self._strings("archMap.subArchitectures", one.get("subArchitectures"))
        own = _MACHINES[self._machine][1]
        if listed and own not in listed:
            raise IsolatorError(f"{self._where}: the profile is for {', '.join(listed)}, and not for {own}")

    def _applies(self, at: str, rule: dict[str, Json]) -> bool:
        includes, excludes = (self._filter(f"{at}.{key}", rule.get(key)) for key in ("includes", "excludes"))
        arches = _MACHINES[self._machine][0]
        caps, machines, kernel = includes
        if any(cap not in self._held for cap in caps) or (machines and not set(machines).intersection(arches)):
            return False
        if kernel is not None and self._kernel() < kernel:
            return False
        caps, machines, kernel = excludes
        if any(cap in self._held for cap in caps) or set(machines).intersection(arches):
            return False
        return kernel is None or self._kernel() < kernel

    def _filter(self, at: str, value: Json) -> tuple[list[str], list[str], tuple[int, int] | None]:
        """Reads ``includes`` or ``excludes``: capabilities, machines, and the least version of the kernel."""
        if value is None:
            return [], [], None
        if not isinstance(value, dict):
            raise self._wrong(at, "an object", value)
        self._known(at, value, _FILTER_KEYS)
        kernel = value.get("minKernel")
        if kernel is not None and (not isinstance(kernel, str) or (version := _version(kernel)) is None):
            raise self._wrong(f"{at}.minKernel", "a version such as 4.8", kernel)
        caps = [cap.upper() for cap in self._strings(f"{at}.caps", value.get("caps"))]
        arches = self._strings(f"{at}.arches", value.get("arches"))
        return caps, arches, None if kernel is None else version

    def _kernel(self) -> tuple[int, int]:
        text = procfs.text(self._host, "proc/sys/kernel/osrelease") or os.uname().release
        return _version(text) or (0, 0)

    def _strings(self, at: str, value: Json) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._wrong(at, "a list of strings", value)
        return list(value)

    def _number(self, at: str, value: Json, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self._wrong(at, f"a whole number up to {most}", value)
        return value

    def _known(self, at: str, value: dict[str, Json], keys: Collection[str]) -> None:
        for key in value:
            if key not in keys:
                raise IsolatorError(f"{self._where}: {at}: unknown key {describe(key)}")

    def _wrong(self, at: str, expected: str, found: Json) -> IsolatorError:
        return IsolatorError(f"{self._where}: {at}: expected {expected}, found {describe(found)}")


def _version(text: str) -> tuple[int, int] | None:
    """Reads the first two numbers of a version: ``6.1.0-44-amd64`` is (6, 1)."""
    parts = text.split("-")[0].split(".")
    numbers = [int(part) for part in parts[:2] if part.isascii() and part.isdecimal() and len(part) < 6]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
