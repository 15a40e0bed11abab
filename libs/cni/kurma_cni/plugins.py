"""Finds and executes CNI plugins; turns their failures into errors (CNI specification, sections 2, 4, 5)."""

from __future__ import annotations

import json
import os

from kurma_cni.chain import VERSIONS
from kurma_cni.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from kurma_cni.chain import Chain

    Json = Any

    class Finished(Protocol):
        """:ivar status: exit status; negative: the signal that ended the program."""

        status: int
        stdout: bytes
        stderr: bytes

    class Programs(Protocol):
        """How programs are run on this host; the module ``kurma_core.linux.programs`` is one."""

        def run(
            self,
            arguments: list[str],
            /,
            *,
            stdin: bytes = ...,
            environment: Mapping[str, str],
            timeout: float = ...,
        ) -> Finished:
            """Runs a program to its end.

            :raises TimeoutError: it was killed, with all that it started; says why.
            :raises OSError: it cannot be started.
            """
            ...

        def search_path(self) -> str:
            """``PATH`` for plugins, which run others."""
            ...

        def find_program(self, name: str, /) -> str | None:
            """Path of an installed program, or None."""
            ...

        def one_line(self, said: bytes | str, /) -> str:
            """Untrusted output for people: printable, in one line of limited length."""
            ...


#: Seconds that a plugin may take.
TIMEOUT = 60.0
#: Message of the plugin bridge about a bridge that an earlier state directory, since deleted, has left.
_STALE_BRIDGE = "already has an IP address different from"
#: The plugins of Debian's package, which the hint of an error names.
DEBIAN_PACKAGE = "containernetworking-plugins"
DEBIAN_PLUGINS = (
    *("bandwidth", "bridge", "dhcp", "firewall", "host-device", "host-local", "ipvlan", "loopback", "macvlan"),
    *("portmap", "ptp", "sbr", "static", "tuning", "vlan", "vrf"),
)
#: The purpose of each verb, in the words of an error.
_VERBS = {
    "ADD": "cannot join network",
    "DEL": "cannot leave network",
    "CHECK": "cannot check network",
    "GC": "cannot clean up network",
    "STATUS": "cannot join network",
    "VERSION": "cannot join network",
}
#: Well-known error codes (CNI specification, section 2, "Error") that say what to do.
_INCOMPATIBLE, _TRY_AGAIN, _UNAVAILABLE, _LIMITED = 1, 11, 50, 51
_HINTS = {
    _TRY_AGAIN: "the plugin asks to be tried again later",
    _UNAVAILABLE: "the plugin says that it is not available: look at what it needs on this host",
    _LIMITED: "the plugin says that it is not available, and that pods which are joined already may be cut off",
}
#: Where the plugin dhcp looks for its daemon, as its error says.
_DHCP_SOCKET = "/dhcp.sock"
#: Message of a plugin of 0.1.0, which had no VERSION yet.
_NO_VERSION = "unknown CNI_COMMAND"


def loads(text: bytes) -> Json:
    """:raises ValueError: the text is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Plugins:
    """Finds and runs plugins.

    :param directories: where plugins are looked for, in order; also handed on as ``CNI_PATH``.
    :param timeout: seconds that each may take.
    :param read: reads the JSON that a plugin prints; raises ValueError.
    :param around: given verb and type, what surrounds the execution of a plugin, such as a lock.
    """

    def __init__(
        self,
        programs: Programs,
        directories: Sequence[str],
        timeout: float = TIMEOUT,
        read: Callable[[bytes], Json] = loads,
        around: Callable[[str, str], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._programs = programs
        self._directories = tuple(directories)
        self._timeout = timeout
        self._read = read
        self._around = around
        self._spoken: dict[tuple[str, int, int, int], tuple[str, ...]] = {}

    def find(self, kind: str, network: str) -> str:
        """Path of the plugin of that type.

        :raises CniError: it is not installed; names it, where it was looked for, and what brings it.
        """
        for directory in self._directories:
            path = os.path.join(directory, kind)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        hint = f"Debian's package {DEBIAN_PACKAGE} brings it" if kind in DEBIAN_PLUGINS else "install it there"
        raise CniError(
            f'network "{network}" needs the CNI plugin "{kind}", which is in none of '
            f"{', '.join(self._directories)}",
            hint=hint,
            plugin=kind,
            missing=True,
        )

    def find_all(self, chain: Chain) -> None:
        """:raises CniError: a program of the chain is not installed."""
        for kind in chain.types:
            self.find(kind, chain.name)

    def execute(
        self,
        verb: str,
        kind: str,
        document: Mapping[str, Json],
        *,
        container: str = "",
        namespace: str = "",
        interface: str = "",
        arguments: str = "",
    ) -> Json:
        """Runs one plugin.

        :param verb: ``ADD``, ``DEL`` or ``CHECK``; ``GC``, ``STATUS`` and ``VERSION`` have no container.
        :param namespace: path of the network namespace; "" when it is gone.
        :param arguments: ``KEY=VALUE;…`` for ``CNI_ARGS``; plugins ignore keys that they do not know.
        :returns: what it printed, for ADD and VERSION; None otherwise.
        :raises CniError: it is missing, failed, took too long, or printed no JSON.
        """
        network = document["name"]
        environment = {
            "PATH": self._programs.search_path(),
            "CNI_COMMAND": verb,
            "CNI_PATH": ":".join(self._directories),
        }
        if container:
            environment |= {
                "CNI_CONTAINERID": container,
                "CNI_NETNS": namespace,
                "CNI_IFNAME": interface,
                "CNI_ARGS": arguments if verb == "VERSION" else f"IgnoreUnknown=1;{arguments}".rstrip(";"),
            }
        path = self.find(kind, network)
        about = f'{_VERBS[verb]} "{network}": CNI plugin {kind}'
        finished = self._run(path, about, document, environment, kind)
        if finished.status != 0:
            error = self._failure(about, finished, network, kind, path)
            if verb != "VERSION" and error.code == _INCOMPATIBLE:
                error.hint = self._speaks(kind, network)
            raise error
        if verb not in ("ADD", "VERSION"):
            return None
        try:
            return self._read(finished.stdout)
        except ValueError:
            found = self._programs.one_line(finished.stdout) or "nothing"
            raise CniError(f"{about} printed no result but {found[:80]}", plugin=kind) from None

    def _run(self, path: str, about: str, document: Json, environment: Mapping[str, str], kind: str) -> Finished:
        stdin = json.dumps(document).encode()
        try:
            if self._around is None:
                return self._programs.run([path], stdin=stdin, environment=environment, timeout=self._timeout)
            with self._around(environment["CNI_COMMAND"], kind):
                return self._programs.run([path], stdin=stdin, environment=environment, timeout=self._timeout)
        except TimeoutError as error:
            raise CniError(f"{about} was killed: {error}", plugin=kind) from None
        except OSError as error:
            raise CniError(f"{about} cannot be executed: {error.strerror}: {path}", plugin=kind) from error

    # -- versions --

    def choose_version(self, chain: Chain) -> None:
        """Sets the highest version that the configuration allows and all of its plugins speak.

        Asks the plugins only if the configuration allows several.

        :raises CniError: there is no such version, or a plugin is missing or gives no answer.
        """
        if len(chain.versions) == 1:
            return
        spoken = [self.versions(kind, chain.name) for kind in chain.types]
        for version in chain.versions:
            if all(version in each for each in spoken):
                chain.version = version
                return
        raise CniError(
            f'network "{chain.name}" is of CNI {", ".join(chain.versions)}, and its plugins have none of '
            "these in common"
        )

    def versions(self, kind: str, network: str) -> tuple[str, ...]:
        """The versions of CNI that a plugin says it speaks; asked once while its file is the same.

        :raises CniError: it is missing, or gives no answer.
        """
        path = self.find(kind, network)
        status = os.stat(path)
        key = path, status.st_ino, status.st_mtime_ns, status.st_size
        if key not in self._spoken:
            self._spoken[key] = self._ask(kind, network)
        return self._spoken[key]

    def _ask(self, kind: str, network: str) -> tuple[str, ...]:
        document = {"name": network, "cniVersion": VERSIONS[-1]}
        try:
            # Old plugins want all of their variables, whatever they are asked.
            answer = self.execute(
                "VERSION", kind, document, container="dummy", namespace="dummy", interface="dummy"
            )
        except CniError as error:
            if _NO_VERSION in error.message:
                return VERSIONS[:1]
            raise
        spoken = answer.get("supportedVersions") if isinstance(answer, dict) else None
        if not isinstance(spoken, list) or not all(isinstance(one, str) for one in spoken):
            raise CniError(
                f'{_VERBS["VERSION"]} "{network}": CNI plugin {kind} does not say which versions it speaks',
                plugin=kind,
            )
        return tuple(self._programs.one_line(one) for one in spoken)

    def _speaks(self, kind: str, network: str) -> str | None:
        try:
            spoken = self.versions(kind, network)
        except CniError:
            return None
        return f"{kind} speaks {', '.join(spoken) or 'no version at all'}: cniVersion is to be one of these"

    # -- failures --

    def _failure(self, about: str, finished: Finished, network: str, kind: str, path: str) -> CniError:
        """The error that a plugin printed (CNI specification, section 5), or what else is known."""
        code, words = None, ""
        try:
            value = self._read(finished.stdout)
            code = _code(value.get("code"))
            words = ": ".join([str(word) for word in (value["msg"], value.get("details")) if word])
            text = words
        except (ValueError, KeyError, AttributeError):  # no JSON, no object, no message
            text = (finished.stderr + b" " + finished.stdout).decode(errors="replace")
        how = f"signal {-finished.status}" if finished.status < 0 else f"status {finished.status}"
        hint = None if code is None else _HINTS.get(code)
        if _STALE_BRIDGE in text:
            hint = f"its bridge is there from before, with other addresses: kurma network rm {network}"
        elif _DHCP_SOCKET in text:
            daemon = os.path.join(os.path.dirname(path), "dhcp")
            hint = f"addresses by DHCP need CNI's own daemon on this host: `{daemon} daemon`"
        one_line = self._programs.one_line
        return CniError(
            f"{about} failed: {one_line(text) or f'it ended with {how} and said nothing'}",
            hint=hint,
            plugin=kind,
            code=code,
            words=one_line(words),
        )


def _code(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
