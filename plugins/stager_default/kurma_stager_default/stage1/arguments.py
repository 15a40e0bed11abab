"""The command line of ``run``, as version 2 of the interface has it (specs: Stage 1 ACI implementor's guide)."""

from __future__ import annotations

from kurma_stager_default.stage1.place import Stage1Error

#: Networks that need nobody's plugins.
HOST, NONE = "host", "none"
_LARGEST_ID = 1 << 32
#: Those with a value, which may be empty.
_VALUES = ("--mds-token", "--local-config", "--private-users", "--hostname")
_FLAGS = ("--debug", "--interactive")


class RunArguments:
    """:attr:`networks` is empty where the pod is to be in the host's.

    :raises Stage1Error: an argument is unknown, or asks for what this stage1 cannot do.
    """

    def __init__(self, words: list[str]) -> None:
        self.debug = self.interactive = False
        self.network = HOST
        self.token = self.hostname = self.uuid = ""
        #: the first id on the host, and how many
        self.users: tuple[int, int] | None = None
        for word in words:
            name, equals, value = word.partition("=")
            if name == "--net":
                self.network = _network(value if equals else "default")
            elif name in _FLAGS:
                setattr(self, name[2:], _flag(name, value if equals else "true"))
            elif name in _VALUES and equals:
                self._take(name, value)
            elif word.startswith("-"):
                raise Stage1Error(f"unknown argument {word!r}: this stage1 keeps to interface version 2")
            elif self.uuid:
                raise Stage1Error(f"one pod at a time: {self.uuid!r}, {word!r}")
            else:
                self.uuid = word

    def _take(self, name: str, value: str) -> None:
        if name == "--mds-token":
            self.token = value
        elif name == "--hostname":
            self.hostname = value
        elif name == "--private-users" and value:
            self.users = _users(value)
        # --local-config is where networks are configured; those that need none of it are all that there are.


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise Stage1Error(f"{name}: expected true or false, got {value!r}")
    return value == "true"


def _network(value: str) -> str:
    names = [name for name in value.split(",") if name]
    if not names or names == [HOST]:
        return HOST
    if names == [NONE]:
        return NONE
    raise Stage1Error(
        f"--net={value}: this stage1 brings no network plugins; it knows --net=host and --net=none only"
    )


def _users(value: str) -> tuple[int, int]:
    first, colon, count = value.partition(":")
    if not (colon and first.isdecimal() and count.isdecimal()):
        raise Stage1Error(f"--private-users={value}: expected SHIFT:COUNT, two numbers")
    if not int(count) or int(first) + int(count) > _LARGEST_ID:
        raise Stage1Error(f"--private-users={value}: there are no such ids")
    return int(first), int(count)
