"""Executing CNI plugins (CNI specification, sections 2 and 4)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kurma_core.appc.nesting import bounded
from kurma_core.errors import NetworkError
from kurma_core.linux.programs import TIMEOUT, Finished, ProgramTimeout, run, search_path

Json = Any
#: What the plugin bridge says of a bridge that an earlier state directory, since deleted, has left.
_STALE_BRIDGE = "already has an IP address different from"
#: What Debian's package brings; asked only for the hint of an error.
DEBIAN_PACKAGE = "containernetworking-plugins"
DEBIAN_PLUGINS = (
    *("bandwidth", "bridge", "dhcp", "firewall", "host-device", "host-local", "ipvlan", "loopback", "macvlan"),
    *("portmap", "ptp", "sbr", "static", "tuning", "vlan", "vrf"),
)
_MESSAGE_MAX = 600
_VERBS = {"ADD": "join", "DEL": "leave", "CHECK": "check"}


class Executor:
    """Finds and runs plugins.

    :param bin_dirs: where they are looked for, in order; also handed on as ``CNI_PATH``.
    :param timeout: seconds that each may take.
    """

    def __init__(self, bin_dirs: Sequence[str], timeout: float = TIMEOUT) -> None:
        self._bin_dirs = tuple(bin_dirs)
        self._timeout = timeout

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
        pod: str,
        namespace: str,
        interface: str,
        arguments: str,
    ) -> Json:
        """Runs one plugin.

        :param verb: ``ADD``, ``DEL`` or ``CHECK``.
        :param namespace: path of the network namespace; "" when it is gone.
        :returns: what it printed, for ADD; None otherwise.
        :raises NetworkError: it is missing, failed, took too long, or printed no JSON.
        """
        network = document["name"]
        environment = {
            "PATH": search_path(),
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": pod,
            "CNI_NETNS": namespace,
            "CNI_IFNAME": interface,
            "CNI_ARGS": arguments,
            "CNI_PATH": ":".join(self._bin_dirs),
        }
        path = self.find(kind, network)
        about = f'cannot {_VERBS[verb]} network "{network}": CNI plugin {kind}'
        try:
            finished = run(
                [path], stdin=json.dumps(document).encode(), environment=environment, timeout=self._timeout
            )
        except ProgramTimeout:
            raise NetworkError(
                f"{about} was killed: it took longer than {self._timeout:g} seconds", network=network, plugin=kind
            ) from None
        except OSError as error:
            raise NetworkError(
                f"{about} cannot be executed: {error.strerror}: {path}", network=network, plugin=kind
            ) from error
        if finished.status != 0:
            raise _failure(about, finished, network, kind)
        if verb != "ADD":
            return None
        try:
            return json.loads(bounded(finished.stdout))
        except ValueError:
            found = _one_line(finished.stdout.decode(errors="replace")) or "nothing"
            raise NetworkError(
                f"{about} printed no result but {found[:80]}", network=network, plugin=kind
            ) from None


def _failure(about: str, finished: Finished, network: str, kind: str) -> NetworkError:
    """The error that a plugin printed (CNI specification, section 5), or what else can be said."""
    code = None
    try:
        value = json.loads(bounded(finished.stdout))
        code = value.get("code")
        words = [str(value["msg"]), str(value.get("details") or "")]
        text = ": ".join([word for word in words if word])
    except (ValueError, KeyError, AttributeError):  # no JSON, no object, no message
        text = (finished.stderr + b" " + finished.stdout).decode(errors="replace")
    how = f"signal {-finished.status}" if finished.status < 0 else f"status {finished.status}"
    return NetworkError(
        f"{about} failed: {_one_line(text) or f'it ended with {how} and said nothing'}",
        hint=f"its bridge is there from before, with other addresses: kurma network rm {network}"
        if _STALE_BRIDGE in text
        else None,
        network=network,
        plugin=kind,
        code=code,
    )


def _one_line(text: str) -> str:
    """Printable, one line, of bearable length: what a plugin prints is not trusted with the terminal."""
    line = " ".join("".join([c if c.isprintable() else " " for c in text]).split())
    return line if len(line) <= _MESSAGE_MAX else line[: _MESSAGE_MAX - 1] + "…"
