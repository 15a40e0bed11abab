"""The administrator's settings for stage1 images: options of the plugin, or of one stager's section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kurma_core.errors import StagerError
from kurma_core.hookspecs.driver import Option
from kurma_core.value import frozen

#: Restrictions that an administrator may lift: name in the stager's configuration, argument on the command line.
LIFTED = {
    "capabilities": "--disable-capabilities-restriction",
    "paths": "--disable-paths",
    "seccomp": "--disable-seccomp",
}
IPC = ("", "auto", "private", "parent")
STORAGES = ("", "overlay", "copy")
#: Default of the seconds that an entrypoint other than ``run`` and ``enter`` may take.
PATIENCE = 30
OPTIONS = (
    Option("debug", bool, False, "have stage1 tell what it does"),
    Option("lift", list, [], "restrictions that stage1 does not put on apps: capabilities, paths, seccomp"),
    Option("ipc", str, "", "IPC namespace of pods: auto, private or parent; empty: as stage1 thinks best"),
    Option(
        "localConfig", str, "", "directory with stage1's configuration (net.d); empty: of Kurma's CNI networks"
    ),
    Option("patience", int, PATIENCE, "seconds that a stop, gc or app entrypoint may take, at least 1", least=1),
    Option("storage", str, "", "how roots are made: overlay or copy; empty: overlay where it works"),
)


@frozen
class Settings:
    """The values of :data:`OPTIONS`; empty: the default of stage1 or of the host."""

    debug: bool
    lift: tuple[str, ...]
    ipc: str
    local_config: str
    storage: str
    patience: int = PATIENCE


def read(stager: str, config: Mapping[str, Any]) -> Settings:
    """Reads the settings. :raises StagerError: a key is unknown, or a value is invalid."""
    known = {option.name: option for option in OPTIONS}
    for key, value in config.items():
        if key not in known:
            raise StagerError(
                f"stager {stager}: its configuration has {key!r:.80}, which means nothing to stage1 images",
                hint="known: " + ", ".join(known),
            )
        if type(value) is not known[key].type:
            raise StagerError(f"stager {stager}: {key} in its configuration is {value!r:.80}: {known[key].help}")
    values = {name: config.get(name, option.default) for name, option in known.items()}
    lift, path = values["lift"], values["localConfig"]
    wrong = [one for one in lift if one not in LIFTED]
    right = {
        "lift": not wrong,
        "ipc": values["ipc"] in IPC,
        "localConfig": not path or path.startswith("/"),
        "storage": values["storage"] in STORAGES,
        "patience": values["patience"] >= 1,
    }
    for key in (key for key, well in right.items() if not well):
        raise StagerError(f"stager {stager}: {key} in its configuration is {values[key]!r:.80}: {known[key].help}")
    return Settings(values["debug"], tuple(lift), values["ipc"], path, values["storage"], values["patience"])
