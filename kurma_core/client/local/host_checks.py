"""Checks this host for what Kurma and its plugins need: by the core, and by enabled plugins (``kurma_checks``)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

from kurma_core.api.host import HostCheckInfo
from kurma_core.cancellation import Cancellation, governing
from kurma_core.config.schema import kind_of
from kurma_core.errors import KurmaError
from kurma_core.hookspecs import GROUPS
from kurma_core.hookspecs.driver import HostCheck

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.client.local.managers import Managers
    from kurma_core.plugins.registry import PluginRegistry

#: Seconds that all plugins together have.
PATIENCE = 5.0
#: Controllers without which common isolators have no effect.
_CONTROLLERS = ("cpu", "memory", "pids")
_NAMESPACES = ("ipc", "mnt", "net", "pid", "uts")


def host_checks(managers: Managers, patience: float = PATIENCE) -> Iterator[HostCheckInfo]:
    """Yields the results of the core's checks, then of plugins by kind and name. Plugins are asked at the same
    time; one that does not answer in time is cancelled, and its check fails.

    :param patience: in seconds.
    """
    from kurma_core.pods.services import Services

    for check in of_host(Services.cgroup_versions()):
        yield _result("kurma", check)
    if os.geteuid() == 0:
        yield _result("kurma", _programs(managers))
    asked = [
        _Asking(managers.registry, group, name) for group in GROUPS for name in managers.registry.enabled(group)
    ]
    end = time.monotonic() + patience
    for one in asked:
        for check in one.checks(end):
            yield _result(one.plugin, check)


def _result(by: str, check: HostCheck) -> HostCheckInfo:
    return HostCheckInfo(by, check.name, check.ok, check.detail, check.hint)


class _Asking:
    """A plugin that is asked for its checks, in a thread of its own."""

    def __init__(self, registry: PluginRegistry, group: str, name: str) -> None:
        self.plugin = f"{kind_of(group)}/{name}"
        self._operation = Cancellation()
        self._found: tuple[HostCheck, ...] | None = None
        self._thread = threading.Thread(
            target=self._run, args=(registry, group, name), name="host-checks", daemon=True
        )
        self._thread.start()

    def _run(self, registry: PluginRegistry, group: str, name: str) -> None:
        with governing(self._operation):
            try:
                self._found = tuple(registry.host_checks(group, name))
            except KurmaError as error:
                self._found = (HostCheck("plugin", False, error.message, error.hint or ""),)

    def checks(self, end: float) -> tuple[HostCheck, ...]:
        """:param end: of the wait, as of the monotonic clock."""
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._found is not None:
            return self._found
        self._operation.cancel()
        return (HostCheck("plugin", False, "it does not answer in time"),)


def of_host(cgroups: Mapping[str, int], root: str = "/") -> Iterator[HostCheck]:
    """The checks of the core.

    :param cgroups: version of each controller of the host.
    :param root: the directory that holds ``/proc``.
    """
    missing = [name for name in _CONTROLLERS if name not in cgroups]
    lacks = f"no controller for {', '.join(missing)}" if missing else ""
    yield HostCheck("cgroups", not missing, lacks, "boot with them, see cgroups(7)" if missing else "")
    missing = [name for name in _NAMESPACES if not os.path.exists(f"{root}/proc/self/ns/{name}")]
    lacks = f"the kernel has none of {', '.join(missing)}" if missing else ""
    yield HostCheck("namespaces", not missing, lacks)
    most = _read(f"{root}/proc/sys/user/max_user_namespaces").strip()
    usable = most not in ("", "0")
    yield HostCheck(
        "user namespaces",
        usable,
        "" if usable else "the kernel allows none",
        "" if usable else "sysctl user.max_user_namespaces=15000; pods run without them, but --userns does not",
    )
    usable = os.path.exists(f"{root}/proc/sys/kernel/seccomp/actions_avail")
    yield HostCheck("seccomp", usable, "" if usable else "the kernel filters no system calls")
    usable = any(line.split()[-1:] == ["overlay"] for line in _read(f"{root}/proc/filesystems").splitlines())
    yield HostCheck(
        "overlay", usable, "" if usable else "the kernel has no overlay", "" if usable else "modprobe overlay"
    )


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _programs(managers: Managers) -> HostCheck:
    try:
        spawner = managers.services.spawner
        spawner.open()
        spawner.probe()
    except KurmaError as error:
        return HostCheck("programs", False, error.message, error.hint or "")
    return HostCheck("programs", True)
