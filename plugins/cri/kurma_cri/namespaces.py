"""The namespaces, sysctls and user namespace of a sandbox, and the namespaces of its containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.models.isolator import CGROUP_PARENT, MAX_ID
from kurma_core.models.pod import PID, PID_HOST, PID_OF_APP, PID_OWN, PID_POD
from kurma_core.value import frozen
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import containers_of
from kurma_cri.rpc import failed_precondition, invalid
from kurma_cri.statuses import container_state

if TYPE_CHECKING:
    from kurma_cri.records import Sandbox

Json = Any
_NAMESPACES, _SYSCTL = "os/linux/namespaces", "os/unix/sysctl"
_POD_OR_NODE = (cri.POD, cri.NODE)
#: The sysctls that Kubernetes counts as namespaced; a word without a dot at its end is a whole name.
_NAMESPACED = ("kernel.shm", "kernel.msg", "fs.mqueue.", "net.")
_SEMAPHORES = "kernel.sem"
_HOST_PIDS = ("os/linux/namespaces=pid",)
_MOST_USERNS = "/proc/sys/user/max_user_namespaces"


def kernel_has_user_namespaces() -> bool:
    """Whether the kernel has user namespaces, and allows any."""
    try:
        with open(_MOST_USERNS) as file:
            return file.read().strip() != "0"
    except OSError:
        return False


@frozen
class SandboxNamespaces:
    """The parts of a pod's request for its namespaces.

    :param userns: as the handler has it, or ``UID:COUNT``.
    """

    isolators: tuple[tuple[str, Json], ...]
    annotations: dict[str, str]
    userns: str | None


def sandbox_namespaces(linux: cri.LinuxPodSandboxConfig, userns: str | None) -> SandboxNamespaces:
    """:param userns: the user namespace of the handler's sandboxes.
    :raises RpcError: a mode does not exist for a sandbox, a sysctl is not the sandbox's own, a mapping is wrong.
    """
    options = linux.security_context.namespace_options
    for name, mode in (("network", options.network), ("ipc", options.ipc)):
        if mode not in _POD_OR_NODE:
            raise invalid(f"namespace_options: {name}: a sandbox has the mode POD or NODE, not {_word(mode)}")
    if options.pid not in (cri.POD, cri.CONTAINER, cri.NODE) or options.target_id:
        raise invalid("namespace_options: pid: a sandbox has the mode POD, CONTAINER or NODE, and no target_id")
    host = {name: "host" for name, mode in (("ipc", options.ipc), ("pid", options.pid)) if mode == cri.NODE}
    isolators: list[tuple[str, Json]] = [(_NAMESPACES, host)] if host else []
    if linux.sysctls:
        isolators.append((_SYSCTL, _sysctls(linux.sysctls, options)))
    annotations = {CGROUP_PARENT: linux.cgroup_parent} if linux.cgroup_parent else {}
    if options.HasField("userns_options"):
        userns = _userns(options) or "none"
    return SandboxNamespaces(tuple(isolators), annotations, userns)


def _sysctls(given: Any, options: cri.NamespaceOption) -> dict[str, str]:
    """:raises RpcError: one is of the whole host."""
    found = {}
    for name, value in given.items():
        key = name.replace("/", ".")
        if key != _SEMAPHORES and not key.startswith(_NAMESPACED):
            raise invalid(f"sysctls: {name} is not a sysctl of a namespace")
        kind, mode = ("network", options.network) if key.startswith("net.") else ("ipc", options.ipc)
        if mode == cri.NODE:
            raise invalid(f"sysctls: {name} would be the node's: the sandbox has the node's {kind} namespace")
        found[name] = value
    return found


def _userns(options: cri.NamespaceOption) -> str | None:
    """``UID:COUNT``; None: the sandbox asks for no user namespace.

    :raises RpcError: the mode is another one than POD or NODE; or there is not one mapping, the same for users and
        groups, from ID 0 on.
    """
    if not options.HasField("userns_options") or options.userns_options.mode == cri.NODE:
        given = options.userns_options
        if given.uids or given.gids:
            raise invalid("userns_options: mappings need the mode POD")
        return None
    given = options.userns_options
    if given.mode != cri.POD:
        raise invalid(f"userns_options: expected the mode POD or NODE, got {_word(given.mode)}")
    if len(given.uids) != 1 or len(given.gids) != 1:
        raise invalid(
            f"userns_options: expected one mapping of UIDs and one of GIDs, got {len(given.uids)} and "
            f"{len(given.gids)}"
        )
    (uids,), (gids,) = given.uids, given.gids
    if uids != gids:
        raise invalid("userns_options: the mappings of UIDs and GIDs must be equal")
    if uids.container_id != 0:
        raise invalid(f"userns_options: container_id must be 0, not {uids.container_id}")
    if not uids.host_id or not uids.length or uids.host_id + uids.length - 1 > MAX_ID:
        raise invalid(f"userns_options: host_id {uids.host_id} with length {uids.length} is not a range of IDs")
    return f"{uids.host_id}:{uids.length}"


def container_pid(sandbox: Sandbox, options: cri.NamespaceOption, *, foreign: bool = False) -> dict[str, str]:
    """The annotations for the PID namespace of a container.

    :param foreign: the stager decides which PID namespace an app gets: kubelet asks for one per container always.
    :raises RpcError: a namespace is not that of the sandbox; the target does not run.
    """
    _check_shared(sandbox, options)
    if options.pid not in cri.NamespaceMode.values():
        raise invalid(f"namespace_options: pid: {options.pid} is not a mode")
    word = PID_POD
    if options.pid == cri.CONTAINER:
        word = PID_POD if foreign else PID_OWN
    elif options.pid == cri.TARGET:
        word = f"{PID_OF_APP}{_target(sandbox, options.target_id)}"
    elif options.pid == cri.NODE and _options_of(sandbox).pid != cri.NODE:
        word = PID_HOST
    if options.target_id and options.pid != cri.TARGET:
        raise invalid("namespace_options: target_id needs the pid mode TARGET")
    return {} if word == PID_POD else {PID: word}


def container_grants(annotations: dict[str, str]) -> tuple[str, ...]:
    """The powers that a container with these annotations must be granted."""
    return _HOST_PIDS if annotations.get(PID) == PID_HOST else ()


def _check_shared(sandbox: Sandbox, options: cri.NamespaceOption) -> None:
    """Checks that the namespaces, which all containers of a sandbox share, are those of the sandbox. A container
    with the mode POD has what its sandbox has."""
    own = _options_of(sandbox)
    for name in ("network", "ipc"):
        mode = getattr(options, name)
        if mode not in _POD_OR_NODE or (mode == cri.NODE and getattr(own, name) != cri.NODE):
            raise invalid(f"namespace_options: {name}: the mode {_word(mode)} is not that of the sandbox")
    if options.HasField("userns_options") and _userns(options) != _userns(own):
        raise invalid("namespace_options: userns_options are not those of the sandbox")


def _target(sandbox: Sandbox, id: str) -> str:
    """:raises RpcError: the sandbox has no running container of that ID."""
    for container in containers_of(sandbox):
        if id and container.id == id:
            if container_state(container) != cri.CONTAINER_RUNNING:
                raise failed_precondition(f"namespace_options: the target container {id} does not run")
            return container.id
    raise invalid(f"namespace_options: the sandbox has no container {id!r}, whose PID namespace is asked for")


def _options_of(sandbox: Sandbox) -> cri.NamespaceOption:
    return sandbox.config.linux.security_context.namespace_options


def _word(mode: int) -> str:
    return cri.NamespaceMode.Name(mode) if mode in cri.NamespaceMode.values() else str(mode)
