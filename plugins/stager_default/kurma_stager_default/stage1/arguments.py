"""Parses the command line of the ``run`` entrypoint, as in version 6 of rkt's stage1 interface (Stage 1 ACI
implementor's guide)."""

from __future__ import annotations

from kurma_stager_default.stage1.place import Stage1Error

#: Special networks of ``--net``: the host's network, only the loopback interface, all configured networks.
HOST, NONE, ALL = "host", "none", "all"
#: The network of ``--net`` without a value; a pod with other networks joins the restricted one besides these.
DEFAULT, RESTRICTED = "default", "default-restricted"
#: rkt's own configuration directory.
LOCAL_CONFIG = "/etc/rkt"
_LARGEST_ID = 1 << 32
#: Options with a value, which may be empty.
_VALUES = ("--mds-token", "--local-config", "--private-users", "--hostname", "--dns-conf-mode", "--ipc")
#: Options without a value, and the attribute that each sets.
_FLAGS = {
    "--debug": "debug",
    "--interactive": "interactive",
    "--disable-capabilities-restriction": "all_capabilities",
    "--disable-paths": "open_paths",
    "--disable-seccomp": "no_seccomp",
}
#: Values of ``--dns-conf-mode``: where an app's ``/etc/resolv.conf`` and ``/etc/hosts`` come from.
FROM_HOST, FROM_STAGE0, FROM_NOWHERE, USUAL = "host", "stage0", "none", "default"
_DNS_MODES = {
    "resolv": (FROM_HOST, FROM_STAGE0, FROM_NOWHERE, USUAL),
    "hosts": (FROM_HOST, FROM_STAGE0, USUAL),
}
#: Values of ``--ipc``; ``auto`` is this stage1's choice, and that is a namespace of the pod's own.
_IPC_MODES = ("auto", "private", "parent")


class RunArguments:
    """The arguments of ``run``.

    :attr:`networks` are the networks of the pod's own network namespace by name, each with its ``CNI_ARGS``; None:
    the pod is in the host's. :attr:`resolv` and :attr:`hosts` are values of ``--dns-conf-mode``.

    :raises Stage1Error: an argument is unknown, or asks for a feature that this stage1 does not support.
    """

    def __init__(self, words: list[str]) -> None:
        self.debug = self.interactive = False
        #: the restrictions that rkt's --insecure-options switches off for all apps
        self.all_capabilities = self.open_paths = self.no_seccomp = False
        #: the pod stays in the caller's IPC namespace
        self.shares_ipc = False
        self.resolv = self.hosts = USUAL
        self.networks: dict[str, str] | None = None
        self.local_config = LOCAL_CONFIG
        self.token = self.hostname = self.uuid = ""
        #: the first host id of the pod's user namespace, and the number of ids
        self.users: tuple[int, int] | None = None
        named: list[str] = []
        for word in words:
            name, equals, value = word.partition("=")
            if name == "--net":
                named += (value or DEFAULT).split(",")
            elif name in _FLAGS:
                setattr(self, _FLAGS[name], _flag(name, value if equals else "true"))
            elif name in _VALUES and equals:
                self._take(name, value)
            elif word.startswith("-"):
                raise Stage1Error(
                    f"unknown argument {word!r}: this stage1 runs no pods that change, and keeps else "
                    "to interface version 6"
                )
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
        elif name == "--dns-conf-mode":
            for pair in value.split(",") if value else []:
                self._take_dns(pair)
        elif name == "--ipc" and value:
            if value not in _IPC_MODES:
                raise Stage1Error(f"--ipc={value}: expected one of {', '.join(_IPC_MODES)}")
            self.shares_ipc = value == "parent"

    def _take_dns(self, pair: str) -> None:
        file, _, mode = pair.partition("=")
        if mode not in _DNS_MODES.get(file, ()):
            raise Stage1Error(f"--dns-conf-mode: {pair!r} is not understood: expected resolv=MODE,hosts=MODE")
        setattr(self, file, mode)


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise Stage1Error(f"{name}: expected true or false, got {value!r}")
    return value == "true"


def _networks(words: list[str]) -> dict[str, str] | None:
    """Parses words of the form ``NAME`` or ``NAME:KEY=VALUE;…``. :returns: see :attr:`RunArguments.networks`."""
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
