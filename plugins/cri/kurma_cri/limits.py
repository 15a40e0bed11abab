"""The limits of requests: which texts, numbers and lists have a meaning. ``fields.py`` applies them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kurma_core.models.isolator import MAX_ID
from kurma_cri.rpc import invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Most bytes of a name, of any other text, and of a word of a command or a variable, as the kernel has it.
NAME, TEXT, WORD = 256, 4096, (128 << 10) - 1
#: Most bytes of credentials: tokens of some registries are long.
_CREDENTIALS = 64 << 10
#: Most bytes of labels or annotations together. Kubernetes allows as many for annotations.
ENTRIES = 256 << 10
#: Most items of a list.
ITEMS = 10_000
#: Most bytes of the configuration of a container: the stager keeps it in memory.
CONTAINER = 512 << 10

_NAMES = frozenset(
    (
        *("PodSandboxMetadata.name", "PodSandboxMetadata.namespace", "PodSandboxMetadata.uid"),
        *("ContainerMetadata.name", "LinuxContainerSecurityContext.run_as_username"),
    )
)
#: Words of programs: any bytes except NUL.
_WORDS = frozenset(("ContainerConfig.command", "ContainerConfig.args", "ExecSyncRequest.cmd", "ExecRequest.cmd"))
#: Secrets are not repeated in errors.
_SECRETS = frozenset(("KeyValue.value", *(f"AuthConfig.{one}" for one in ("username", "password", "auth"))))
_SECRETS |= {f"AuthConfig.{one}" for one in ("server_address", "identity_token", "registry_token")}
#: Looked up: an unknown one is NOT_FOUND, and ends of it succeed.
_IDS = frozenset(("container_id", "pod_sandbox_id", "id"))
#: Any text is a label or an annotation.
_FREE_MAPS = frozenset(("labels", "annotations", "label_selector"))

_ANY = (-(1 << 63), (1 << 64) - 1)
_SIZE, _PORT, _ID = (-1, (1 << 63) - 1), (0, 0xFFFF), (0, MAX_ID)
_RESOURCES = "LinuxContainerResources"
#: Ranges of numbers. -1: there is no limit.
_RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "ExecSyncRequest.timeout": ((0, _SIZE[1]),),
    "HugepageLimit.limit": ((0, _SIZE[1]),),
    "Int64Value.value": (_ID,),
    "LinuxContainerSecurityContext.supplemental_groups": (_ID,),
    "LinuxSandboxSecurityContext.supplemental_groups": (_ID,),
    # The kernel's ranges, in microseconds.
    f"{_RESOURCES}.cpu_period": ((0, 0), (1000, 1_000_000)),
    f"{_RESOURCES}.cpu_quota": ((-1, 0), (1000, (1 << 44) - 1)),
    f"{_RESOURCES}.cpu_shares": ((0, _SIZE[1]),),
    f"{_RESOURCES}.memory_limit_in_bytes": (_SIZE,),
    f"{_RESOURCES}.memory_swap_limit_in_bytes": (_SIZE,),
    f"{_RESOURCES}.oom_score_adj": ((-1000, 1000),),
    "PortForwardRequest.port": ((1, 0xFFFF),),
    "PortMapping.container_port": (_PORT,),
    "PortMapping.host_port": (_PORT,),
}
_CPUS = (re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"), "a list such as 0-3,6")
#: Forms of texts.
_FORMS: dict[str, tuple[re.Pattern[str], str]] = {
    f"{_RESOURCES}.cpuset_cpus": _CPUS,
    f"{_RESOURCES}.cpuset_mems": _CPUS,
    "HugepageLimit.page_size": (re.compile(r"[0-9]+[KMGT]?B"), "a size such as 2MB"),
    "KeyValue.key": (re.compile(r"[ -<>-~]+"), "printable ASCII characters except ="),
}
_SHOWN = 80


def check_list(where: str, values: Any) -> None:
    """:raises RpcError: it is too long."""
    if len(values) > ITEMS:
        raise invalid(f"{where}: {len(values)} items are too many: the most are {ITEMS}")


def check_map(field: str, where: str, values: Any) -> None:
    """:param field: its own name.
    :raises RpcError: it is too large, or its texts have control characters.
    """
    if sum(len(key.encode()) + len(value.encode()) for key, value in values.items()) > ENTRIES:
        raise invalid(f"{where}: all entries together may have {ENTRIES} bytes")
    if field not in _FREE_MAPS:
        for key, value in values.items():
            _check_text(where, key, TEXT)
            _check_text(f"{where}: {key}", value, TEXT)


def check_number(name: str, where: str, number: int) -> None:
    """:param name: ``Message.field``. :raises RpcError: it is outside of its range."""
    ranges = _RANGES.get(name, (_ANY,))
    if not any(least <= number <= most for least, most in ranges):
        words = " or ".join(str(least) if least == most else f"{least} to {most}" for least, most in ranges)
        raise invalid(f"{where}: expected {words}, got {number}")


def check_enum(where: str, number: int, known: Iterable[int]) -> None:
    """:raises RpcError: the number has no meaning."""
    if number not in known:
        raise invalid(f"{where}: {number} is not one of its values")


def check_text(name: str, where: str, value: str | bytes) -> None:
    """:param name: ``Message.field``.
    :raises RpcError: it is too long, has a control character, or not the form of such a text.
    """
    field = name.rpartition(".")[2]
    if name in _SECRETS or name in _WORDS:
        data = value.encode() if isinstance(value, str) else value
        most = _CREDENTIALS if name.startswith("AuthConfig.") else WORD
        if len(data) > most:
            raise invalid(f"{where}: {len(data)} bytes are too many: the most are {most}")
        if b"\0" in data:
            raise invalid(f"{where}: it has a NUL character")
    elif isinstance(value, str) and field not in _IDS:
        _check_text(where, value, NAME if name in _NAMES else TEXT)
        pattern, words = _FORMS.get(name, (None, ""))
        if pattern is not None and not pattern.fullmatch(value):
            raise invalid(f"{where}: expected {words}, got {value[:_SHOWN]!r}")


def _check_text(where: str, text: str, most: int) -> None:
    if len(text.encode()) > most:
        raise invalid(f"{where}: {len(text.encode())} bytes are too many: the most are {most}")
    if any(letter < " " or letter == "\x7f" for letter in text):
        raise invalid(f"{where}: control characters are not allowed, got {text[:_SHOWN]!r}")


def check_container(size: int) -> None:
    """:param size: of the configuration, in bytes. :raises RpcError: it is too large."""
    if size > CONTAINER:
        raise invalid(f"config: {size} bytes are too many: the configuration of a container may have {CONTAINER}")
