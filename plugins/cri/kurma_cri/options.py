"""The options of the service in ``kurma.yml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import ConfigError
from kurma_core.hookspecs.driver import Option
from kurma_core.value import field, frozen

Json = Any
SOCKET = "/run/kurma/cri.sock"
OPTIONS = (
    Option("socket", str, SOCKET, "path of the socket that kubelet and crictl use"),
    Option(
        "network",
        str,
        "cni",
        "network of the pods: `cni`, the first valid file of `/etc/cni/net.d`, or another Kurma network",
    ),
    Option("stream_address", str, "127.0.0.1", "address of the server for exec, attach and port-forward"),
    Option("stream_port", int, 0, "its port; 0: any free port"),
    Option(
        "handlers",
        dict,
        {},
        "runtime handlers by name, each with `stager`, `userns` and `renderer`: the handler of a RuntimeClass",
    ),
)
_HANDLER_KEYS = ("stager", "renderer", "userns")


@frozen
class Handler:
    """A runtime handler: the part of a pod request that a RuntimeClass chooses. None: Kurma's default."""

    name: str
    stager: str | None = None
    renderer: str | None = None
    userns: str | None = None


@frozen
class Options:
    """:param handlers: by name; ``""`` is the default one."""

    socket: str
    network: str
    stream_address: str
    stream_port: int
    handlers: Mapping[str, Handler] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Mapping[str, Json]) -> Options:
        """:raises ConfigError: a value is wrong."""
        if not config["socket"].startswith("/"):
            raise ConfigError(f"cri: socket is {config['socket']!r}: it must be an absolute path")
        if not 0 <= config["stream_port"] <= 65535:
            raise ConfigError(f"cri: stream_port is {config['stream_port']}: it must be from 0 to 65535")
        handlers = {"": Handler("")}
        for name, keys in config["handlers"].items():
            if not isinstance(keys, Mapping):
                raise ConfigError(
                    f"cri: handler {name!r} must be an object", hint=f"keys: {', '.join(_HANDLER_KEYS)}"
                )
            for key, value in keys.items():
                if key not in _HANDLER_KEYS:
                    raise ConfigError(
                        f"cri: handler {name!r} has the unknown key {key!r}",
                        hint=f"keys: {', '.join(_HANDLER_KEYS)}",
                    )
                if not isinstance(value, str):
                    raise ConfigError(f"cri: handler {name!r}: {key} must be a text")
            userns = keys.get("userns", "none")
            if userns not in ("none", "auto") and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", userns):
                raise ConfigError(
                    f"cri: handler {name!r}: userns is {userns!r}", hint="none, auto, or UID:COUNT of the host"
                )
            handlers[name] = Handler(name, **keys)
        return cls(config["socket"], config["network"], config["stream_address"], config["stream_port"], handlers)
