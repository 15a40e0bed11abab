"""The command line of ``run``, as version 2 of the interface has it (specs: Stage 1 ACI implementor's guide)."""

from __future__ import annotations

from kurma_stager_default.stage1.place import Stage1Error

#: Of networks: the host's, and none but the loopback interface; and all that are configured.
HOST, NONE, ALL = "host", "none", "all"
#: What ``--net`` means without a value; and what is joined where that is not among the networks.
DEFAULT, RESTRICTED = "default", "default-restricted"
#: rkt's own configuration directory.
LOCAL_CONFIG = "/etc/rkt"
_LARGEST_ID = 1 << 32
#: Those with a value, which may be empty.
_VALUES = ("--mds-token", "--local-config", "--private-users", "--hostname")
_FLAGS = ("--debug", "--interactive")


class RunArguments:
    """:attr:`networks`, by name, are those of a network namespace of the pod's own, each with what its plugins are
    told besides (``CNI_ARGS``); None: the pod is in the host's.

    :raises Stage1Error: an argument is unknown, or asks for what this stage1 cannot do.
    """

    def __init__(self, words: list[str]) -> None:
        self.debug = self.interactive = False
        self.networks: dict[str, str] | None = None
        self.local_config = LOCAL_CONFIG
        self.token = self.hostname = self.uuid = ""
        #: the first id on the host, and how many
        self.users: tuple[int, int] | None = None
        named: list[str] = []
        for word in words:
            name, equals, value = word.partition("=")
            if name == "--net":
                named += (value or DEFAULT).split(",")
            elif name in _FLAGS:
                setattr(self, name[2:], _flag(name, value if equals else "true"))
            elif name in _VALUES and equals:
                self._take(name, value)
            elif word.startswith("-"):
                raise Stage1Error(f"unknown argument {word!r}: this stage1 keeps to interface version 2")
            elif self.uuid:
                raise Stage1Error(f"one pod at a time: {self.uuid!r}, {word!r}")
            elif "/" in word:
                raise Stage1Error(f"not a pod's UUID: {word!r}")
            else:
                self.uuid = word
        if named:
            self.networks = _networks(named)

    def _take(self, name: str, value: str) -> None:
        if name == "--mds-token":
            self.token = value
        elif name == "--hostname":
            self.hostname = value
        elif name == "--private-users" and value:
            self.users = _users(value)
        elif name == "--local-config" and value:
            self.local_config = value


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise Stage1Error(f"{name}: expected true or false, got {value!r}")
    return value == "true"


def _networks(words: list[str]) -> dict[str, str] | None:
    """Of ``NAME`` or ``NAME:KEY=VALUE;…`` each."""
    found: dict[str, str] = {}
    for word in words:
        name, colon, arguments = word.partition(":")
        if not name or name in found:
            why = "is named twice" if name else "has no name"
            raise Stage1Error(f"--net={','.join(words)}: a network {why}")
        if colon and name in (HOST, NONE, ALL):
            raise Stage1Error(f"--net={word}: {name} takes no arguments")
        found[name] = arguments
    alone = [name for name in (HOST, NONE) if name in found]
    if alone and len(found) > 1:
        raise Stage1Error(f"--net={','.join(words)}: {alone[0]} cannot be had with other networks")
    if HOST in found:
        return None
    return {} if NONE in found else found


def _users(value: str) -> tuple[int, int]:
    first, colon, count = value.partition(":")
    if not (colon and first.isdecimal() and count.isdecimal()):
        raise Stage1Error(f"--private-users={value}: expected SHIFT:COUNT, two numbers")
    if not int(count) or int(first) + int(count) > _LARGEST_ID:
        raise Stage1Error(f"--private-users={value}: there are no such ids")
    return int(first), int(count)
