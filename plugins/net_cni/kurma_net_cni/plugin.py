"""The hook of the network kind ``cni``."""

from __future__ import annotations

from contextlib import suppress

from kurma_core.errors import ConfigError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, HostCheck, Option
from kurma_core.hookspecs.network import NetworkHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The plugin's ``aci`` name in configurations of other implementations of Kurma (Kurma Network Specification).
ALIAS = "apcera.com/kurma/cni-netplugin"
BIN_DIRS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/local/libexec/cni")
CONFIG_DIRS = ("/etc/cni/net.d",)
_CONFIGURATIONS = (".conf", ".conflist", ".json")


def _create(context: DriverContext) -> NetworkHooks:
    from kurma_net_cni.driver import CniNetwork
    from kurma_net_cni.records import Records

    for key in ("bin_dirs", "config_dirs"):
        for path in context.config[key]:
            # Programs of these directories run as root: relative paths and lists with colons are refused.
            if not isinstance(path, str) or not path.startswith("/") or ":" in path:
                raise ConfigError(
                    f"plugins.networks.cni.config.{key}: {path!r} is not an absolute path without colons",
                    path=f"plugins.networks.cni.config.{key}",
                )
    return CniNetwork(
        context.config["bin_dirs"],
        context.config["timeout"],
        Records(context.state_dir),
        tuple(context.config["config_dirs"]),
        context.note,
    )


@hookimpl
def kurma_checks(context: DriverContext) -> Sequence[HostCheck]:
    """CNI's plugins: needed if CNI's own directories have a configuration."""
    import os

    def files(directories: Sequence[str]) -> Iterator[str]:
        for directory in directories:
            with suppress(OSError):
                yield from (f"{directory}/{name}" for name in os.listdir(directory))

    if any(os.access(file, os.X_OK) for file in files(context.config["bin_dirs"])):
        return (HostCheck("CNI plugins", True),)
    configured = sorted(file for file in files(context.config["config_dirs"]) if file.endswith(_CONFIGURATIONS))
    if not configured:
        return (HostCheck("CNI plugins", True, "none are installed, and no file of CNI's needs them"),)
    detail = f"none are installed, and {configured[0]} needs them"
    return (HostCheck("CNI plugins", False, detail, "apt-get install containernetworking-plugins"),)


@hookimpl
def kurma_network() -> Driver:
    """The driver of the network kind ``cni``."""
    return Driver(
        create=_create,
        options=(
            Option("bin_dirs", list, list(BIN_DIRS), "directories of CNI plugins, in order"),
            Option("config_dirs", list, list(CONFIG_DIRS), "directories of CNI's own network configurations"),
            Option("timeout", float, 60.0, "seconds that a plugin may take before it is killed", least=0.01),
        ),
        aliases=(ALIAS,),
    )
