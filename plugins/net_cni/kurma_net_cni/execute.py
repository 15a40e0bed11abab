"""Executing CNI plugins (CNI specification, sections 2 and 4)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kurma_core.appc.cni_result import VERSIONS
from kurma_core.errors import NetworkError
from kurma_core.json_text import loads
from kurma_core.linux.programs import TIMEOUT, Finished, ProgramTimeout, ProgramWild, one_line, run, search_path

Json = Any
#: What the plugin bridge says of a bridge that an earlier state directory, since deleted, has left.
_STALE_BRIDGE = "already has an IP address different from"
#: What Debian's package brings; asked only for the hint of an error.
DEBIAN_PACKAGE = "containernetworking-plugins"
DEBIAN_PLUGINS = (
    *("bandwidth", "bridge", "dhcp", "firewall", "host-device", "host-local", "ipvlan", "loopback", "macvlan"),
    *("portmap", "ptp", "sbr", "static", "tuning", "vlan", "vrf"),
)
#: What each verb is for, in the words of an error.
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
#: Where the plugin dhcp looks for its daemon, as it tells when that is not there.
_DHCP_SOCKET = "/dhcp.sock"
#: What a plugin of 0.1.0 says, which had no VERSION yet.
_NO_VERSION = "unknown CNI_COMMAND"


class Executor:
    """Finds and runs plugins.

    :param bin_dirs: where they are looked for, in order; also handed on as ``CNI_PATH``.
    :param timeout: seconds that each may take.
    """

    def __init__(self, bin_dirs: Sequence[str], timeout: float = TIMEOUT) -> None:
        self._bin_dirs = tuple(bin_dirs)
        self._timeout = timeout
        self._spoken: dict[tuple[str, int, int, int], tuple[str, ...]] = {}

    def find(self, kind: str, network: str) -> str:
        """Path of the plugin of that type.

        :raises NetworkError: there is none; names it, where it was looked for, and what brings it.
        """
        for directory in self._bin_dirs:
            path = os.path.join(directory, kind)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        hint = f"Debian's package {DEBIAN_PACKAGE} brings it" if kind in DEBIAN_PLUGINS else "install it there"
        raise NetworkError(
            f'network "{network}" needs the CNI plugin "{kind}", which is in none of {", ".join(self._bin_dirs)}',
            hint=f"{hint}; other directories are named by bin_dirs in the section of the plugin cni",
            network=network,
            plugin=kind,
        )

    def execute(
        self,
        verb: str,
        kind: str,
        document: Mapping[str, Json],
        *,
        pod: str = "",
        namespace: str = "",
        interface: str = "",
        arguments: str = "",
    ) -> Json:
        """Runs one plugin.

        :param verb: ``ADD``, ``DEL`` or ``CHECK``; ``GC``, ``STATUS`` and ``VERSION`` are of no pod.
        :param namespace: path of the network namespace; "" when it is gone.
        :returns: what it printed, for ADD and VERSION; None otherwise.
        :raises NetworkError: it is missing, failed, took too long, or printed no JSON. ``code`` among its data is
            the one that the plugin has answered with, if any.
        """
        network = document["name"]
        environment = {
            "PATH": search_path(),
            "CNI_COMMAND": verb,
            "CNI_PATH": ":".join(self._bin_dirs),
        }
        if pod:
            environment |= {
                "CNI_CONTAINERID": pod,
                "CNI_NETNS": namespace,
                "CNI_IFNAME": interface,
                "CNI_ARGS": arguments,
            }
        path = self.find(kind, network)
        about = f'{_VERBS[verb]} "{network}": CNI plugin {kind}'
        finished = self._run(path, about, document, environment, network, kind)
        if finished.status != 0:
            error = _failure(about, finished, network, kind, path)
            if verb != "VERSION" and error.data.get("code") == _INCOMPATIBLE:
                error.hint = self._speaks(kind, network)
            raise error
        if verb not in ("ADD", "VERSION"):
            return None
        try:
            return loads(finished.stdout)
        except ValueError:
            found = one_line(finished.stdout) or "nothing"
            raise NetworkError(
                f"{about} printed no result but {found[:80]}", network=network, plugin=kind
            ) from None

    def _run(
        self, path: str, about: str, document: Json, environment: Mapping[str, str], network: str, kind: str
    ) -> Finished:
        try:
            return run([path], stdin=json.dumps(document).encode(), environment=environment, timeout=self._timeout)
        except ProgramWild:
            why = "was killed: it printed without end"
        except ProgramTimeout:
            why = f"was killed: it took longer than {self._timeout:g} seconds"
        except OSError as error:
            raise NetworkError(
                f"{about} cannot be executed: {error.strerror}: {path}", network=network, plugin=kind
            ) from error
        raise NetworkError(f"{about} {why}", network=network, plugin=kind)

    # -- versions --

    def versions(self, kind: str, network: str) -> tuple[str, ...]:
        """The versions of CNI that a plugin speaks, as it says itself; asked once while its file is the same.

        :raises NetworkError: it is missing, or gives no answer.
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
            # Plugins of old want all of their variables, whatever they are asked.
            answer = self.execute(
                "VERSION", kind, document, pod="dummy", namespace="dummy", interface="dummy", arguments=""
            )
        except NetworkError as error:
            if _NO_VERSION in error.message:
                return VERSIONS[:1]
            raise
        spoken = answer.get("supportedVersions") if isinstance(answer, dict) else None
        if not isinstance(spoken, list) or not all(isinstance(one, str) for one in spoken):
            raise NetworkError(
                f'{_VERBS["VERSION"]} "{network}": CNI plugin {kind} does not say which versions it speaks',
                network=network,
                plugin=kind,
            )
        return tuple(one_line(one) for one in spoken)

    def _speaks(self, kind: str, network: str) -> str | None:
        try:
            spoken = self.versions(kind, network)
        except NetworkError:
            return None
        return f"{kind} speaks {', '.join(spoken) or 'no version at all'}: cniVersion is to be one of these"


def _failure(about: str, finished: Finished, network: str, kind: str, path: str) -> NetworkError:
    """The error that a plugin printed (CNI specification, section 5), or what else can be said."""
    code = None
    try:
        value = loads(finished.stdout)
        code = _code(value.get("code"))
        words = [str(value["msg"]), str(value.get("details") or "")]
        text = ": ".join([word for word in words if word])
    except (ValueError, KeyError, AttributeError):  # no JSON, no object, no message
        text = (finished.stderr + b" " + finished.stdout).decode(errors="replace")
    how = f"signal {-finished.status}" if finished.status < 0 else f"status {finished.status}"
    hint = None if code is None else _HINTS.get(code)
    if _STALE_BRIDGE in text:
        hint = f"its bridge is there from before, with other addresses: kurma network rm {network}"
    elif _DHCP_SOCKET in text:
        daemon = os.path.join(os.path.dirname(path), "dhcp")
        hint = f"addresses by DHCP need CNI's own daemon on this host: `{daemon} daemon`"
    return NetworkError(
        f"{about} failed: {one_line(text) or f'it ended with {how} and said nothing'}",
        hint=hint,
        network=network,
        plugin=kind,
        code=code,
    )


def _code(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
