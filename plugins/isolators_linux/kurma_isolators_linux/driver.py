"""The isolator driver: maps each isolator's name to the function that compiles it, and adds the defaults.

A family of isolators is a module, imported when one of its isolators is compiled: most pods use none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.isolator import IsolatorAbout, IsolatorHooks
from kurma_core.linux.capabilities import NAMES
from kurma_core.models.isolator import RLIMITS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kurma_core.hookspecs.isolator import Compiled, IsolatorHost, Power
    from kurma_core.models.isolator import TrafficLimit

#: Name → module and function: ``function(name, value, scope, host) -> Compiled``.
_COMPILERS = {
    "os/linux/capabilities-remove-set": "capabilities:remove_set",
    "os/linux/capabilities-retain-set": "capabilities:retain_set",
    "kurma.io/capabilities": "capabilities:exact",
    "os/linux/cpu-shares": "resources:cpu_shares",
    "host/api-access": "host_access:api_access",
    "host/privileged": "host_access:host_privileged",
    "kurma.io/devices": "devices:devices",
    "os/linux/namespaces": "host_access:namespaces",
    "os/linux/no-new-privileges": "processes:no_new_privileges",
    "resource/cpu": "resources:cpu",
    "resource/memory": "resources:memory",
    "kurma.io/pids-limit": "processes:pids_limit",
    "kurma.io/ulimits": "ulimits:ulimits",
    "kurma.io/linux-resources": "linux_resources:linux_resources",
    "resource/block-bandwidth": "bandwidth:block",
    "resource/block-iops": "bandwidth:block",
    "kurma.io/block-read-bandwidth": "bandwidth:block",
    "kurma.io/block-write-bandwidth": "bandwidth:block",
    "resource/network-bandwidth": "bandwidth:network",
    "kurma.io/network-read-bandwidth": "bandwidth:network",
    "kurma.io/network-write-bandwidth": "bandwidth:network",
    "os/linux/oom-score-adj": "processes:oom_score_adj",
    "os/unix/sysctl": "sysctls:sysctl",
    "os/linux/privileged": "host_access:privileged",
    "os/linux/seccomp-retain-set": "seccomp:retain_set",
    "os/linux/seccomp-remove-set": "seccomp:remove_set",
    "kurma.io/seccomp-profile": "seccomp_profile:profile",
    "kurma.io/cdi": "cdi:cdi",
    "kurma.io/environment": "processes:environment",
    "kurma.io/masked-paths": "path_lists:masked_paths",
    "kurma.io/read-only-paths": "path_lists:read_only_paths",
    "os/linux/apparmor-profile": "apparmor_selinux:apparmor_profile",
    "os/linux/selinux-context": "apparmor_selinux:selinux_context",
}
_BOTH = ("app", "pod")
#: The scopes in which an isolator has a meaning; isolators that are not listed here: apps only.
_SCOPES: dict[str, tuple[str, ...]] = {
    "resource/cpu": _BOTH,
    "resource/memory": _BOTH,
    "kurma.io/pids-limit": _BOTH,
    "kurma.io/linux-resources": _BOTH,
    "resource/block-bandwidth": _BOTH,
    "resource/block-iops": _BOTH,
    "kurma.io/block-read-bandwidth": _BOTH,
    "kurma.io/block-write-bandwidth": _BOTH,
    "resource/network-bandwidth": _BOTH,
    "kurma.io/network-read-bandwidth": _BOTH,
    "kurma.io/network-write-bandwidth": _BOTH,
    "os/linux/cpu-shares": _BOTH,
    "os/linux/apparmor-profile": _BOTH,
    "os/linux/selinux-context": _BOTH,
    "os/unix/sysctl": ("pod",),
    "host/api-access": _BOTH,
    "host/privileged": _BOTH,
    "kurma.io/devices": _BOTH,
    "os/linux/namespaces": _BOTH,
    "os/linux/privileged": _BOTH,
}
#: Default limit of an app's processes and threads: enough for any program, not for a fork bomb. Podman's is the
#: same.
PIDS = 2048
#: Name → module and function that returns the powers over the host that a value asks for, beyond the default:
#: ``function(name, value, scope, host) -> tuple[Power, ...]``. All other isolators only divide or limit resources.
_GATED = {
    "host/api-access": "host_access:api_powers",
    "host/privileged": "host_access:powers",
    "kurma.io/capabilities": "capabilities:exact_powers",
    "kurma.io/cdi": "cdi:powers",
    "kurma.io/devices": "devices:powers",
    "kurma.io/linux-resources": "linux_resources:powers",
    "kurma.io/masked-paths": "path_lists:powers",
    "kurma.io/read-only-paths": "path_lists:powers",
    "kurma.io/pids-limit": "processes:pids_limit_powers",
    "kurma.io/ulimits": "ulimits:powers",
    "kurma.io/seccomp-profile": "seccomp_profile:powers",
    "os/linux/apparmor-profile": "apparmor_selinux:apparmor_powers",
    "os/linux/capabilities-retain-set": "capabilities:powers",
    "os/linux/cpu-shares": "resources:cpu_shares_powers",
    "os/linux/namespaces": "host_access:namespaces_powers",
    "os/linux/oom-score-adj": "processes:oom_score_adj_powers",
    "os/linux/privileged": "host_access:powers",
    "os/linux/seccomp-retain-set": "seccomp:powers",
    "os/linux/selinux-context": "apparmor_selinux:selinux_powers",
    "resource/cpu": "resources:cpu_powers",
}
#: The parts of the gated isolators; None: any path, call or name is a part; not listed: no parts.
_PARTS: dict[str, tuple[str, ...] | None] = {
    "host/api-access": ("full", "read"),
    "kurma.io/capabilities": NAMES,
    "kurma.io/cdi": None,
    "kurma.io/devices": None,
    "kurma.io/seccomp-profile": ("none", "path", "unconfined"),
    "kurma.io/ulimits": RLIMITS,
    "os/linux/apparmor-profile": None,
    "os/linux/capabilities-retain-set": NAMES,
    "os/linux/namespaces": ("ipc", "net", "pid", "user", "uts"),
    "os/linux/seccomp-retain-set": None,
    "os/linux/selinux-context": None,
}
_SYSCTL = "os/unix/sysctl"
#: A pod's label applies to each of its apps without a label of its own.
_LABELS = ("os/linux/apparmor-profile", "os/linux/selinux-context")
_REMOVE_CAPABILITIES = "os/linux/capabilities-remove-set"
_CAPABILITIES = frozenset([_REMOVE_CAPABILITIES, "os/linux/capabilities-retain-set", "kurma.io/capabilities"])
_FILTERS = frozenset(["os/linux/seccomp-retain-set", "os/linux/seccomp-remove-set", "kurma.io/seccomp-profile"])


#: The limits of block devices: an app has its pod's by default.
_BLOCK = tuple(name for name, function in _COMPILERS.items() if function == "bandwidth:block")

#: The declarations of the plugin.
ISOLATORS = tuple(_COMPILERS)
DEFAULTS = (_SYSCTL, "kurma.io/pids-limit", _REMOVE_CAPABILITIES, "kurma.io/seccomp-profile", *_BLOCK, *_LABELS)
EXCLUSIVE = (_CAPABILITIES, _FILTERS)
GATED = {name: _PARTS.get(name, ()) for name in _GATED}


class LinuxIsolators(IsolatorHooks):
    """The driver; a subclass so that mypy checks its signatures."""

    @hookimpl
    def defaults(self, scope: str, names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
        found: tuple[tuple[str, Any], ...] = ()
        if scope != "app":
            # Sets ping_group_range, so that ping works without CAP_NET_RAW.
            return found if _SYSCTL in names or host.host_network else ((_SYSCTL, {}),)
        if "kurma.io/pids-limit" not in names:
            found += (("kurma.io/pids-limit", {"limit": PIDS}),)
        if _CAPABILITIES.isdisjoint(names):
            from kurma_isolators_linux.capabilities import default_value

            found += ((_REMOVE_CAPABILITIES, default_value(fewer_capabilities=host.fewer_capabilities)),)
        if _FILTERS.isdisjoint(names):
            found += (("kurma.io/seccomp-profile", "default"),)
        if host.pod:
            from kurma_isolators_linux.bandwidth import pod_limits

            found += pod_limits(names, host)
            found += tuple((name, host.pod[name]) for name in _LABELS if name in host.pod and name not in names)
        return found

    @hookimpl
    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        """Compiles an isolator by its module.

        :raises IsolatorError: the value is wrong, or the isolator has no meaning in that scope.
        """
        scopes = _SCOPES.get(name, ("app",))
        if scope not in scopes:
            raise IsolatorError(
                f"isolator {name} has no meaning for {_a(scope)}", hint=f"give it to {_a(scopes[0])}"
            )
        compiled: Compiled = _function(_COMPILERS[name])(name, value, scope, host)
        return compiled

    @hookimpl
    def powers(self, name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
        """:raises IsolatorError: the value is wrong."""
        if name not in _GATED:
            return ()
        found: tuple[Power, ...] = _function(_GATED[name])(name, value, scope, host)
        return found

    @hookimpl
    def namespaces(self, name: str, value: Any) -> Mapping[str, str]:
        """:raises IsolatorError: the value is wrong."""
        if name != "os/linux/namespaces":
            return {}
        found: Mapping[str, str] = _function("host_access:namespaces_of")(name, value)
        return found

    @hookimpl
    def changed(self, name: str, before: Any, value: Any) -> Any:
        """:raises IsolatorError: the value is wrong."""
        if name != "kurma.io/linux-resources":
            return value
        return _function("linux_resources:changed")(name, before, value)

    @hookimpl
    def limit_traffic(
        self, namespace: str, limits: Collection[TrafficLimit], held: Mapping[str, Collection[TrafficLimit]]
    ) -> tuple[str, ...]:
        """:raises NetworkError: the kernel refuses; it may lack a module."""
        from kurma_isolators_linux.traffic import limit_traffic

        return limit_traffic(namespace, limits, held)

    @hookimpl
    def about(self, name: str) -> IsolatorAbout:
        from kurma_isolators_linux.about import ABOUT

        return IsolatorAbout(_SCOPES.get(name, ("app",)), *ABOUT[name])


def _function(name: str) -> Any:
    module, function = name.split(":")
    return getattr(import_module(f"kurma_isolators_linux.{module}"), function)


def _a(scope: str) -> str:
    return "an app" if scope == "app" else "a pod"
