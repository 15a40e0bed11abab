"""Security contexts of sandboxes and containers: the isolators, the user and the groups that they mean.

A sandbox has no process of its own. Its context is checked, and gives its containers their SELinux label and the
right to be privileged.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from kurma_core.models.isolator import MAX_ID
from kurma_core.value import frozen
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = Any
Isolators = list[tuple[str, Json]]

GROUP_POLICY = "kurma.io/group-policy"
_PRIVILEGED, _SECCOMP = "os/linux/privileged", "kurma.io/seccomp-profile"
_APPARMOR, _SELINUX = "os/linux/apparmor-profile", "os/linux/selinux-context"
_NO_FILTER = (_SECCOMP, "unconfined")
_POLICIES = {cri.Merge: "merge", cri.Strict: "strict"}
#: Devices that every app has, at the same paths.
_USUAL = frozenset(f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero"))
#: Paths that are in each list that kubelet sends by default.
_KUBELETS = {
    "kurma.io/masked-paths": frozenset(
        (
            *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
            *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware"),
        )
    ),
    "kurma.io/read-only-paths": frozenset(
        ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
    ),
}
_SELINUX_PLACE = "/sys/fs/selinux"
#: The SELinux context of containers, by the policies of Fedora and Debian.
_CONTEXT = {"user": "system_u", "role": "system_r", "type": "container_t"}
_CATEGORIES = 1024
_LOCALHOST, _RUNTIME_DEFAULT, _UNCONFINED = "localhost/", ("runtime/default", "docker/default"), "unconfined"


@frozen
class Identity:
    """The user and the groups of a container. None: as the image has it.

    :param groups: supplementary groups. :param policy: of Kurma's annotation.
    """

    user: str | None
    group: str | None
    groups: tuple[int, ...]
    policy: str


def identity(security: cri.LinuxContainerSecurityContext) -> Identity:
    """:raises RpcError: the fields contradict each other, or are not IDs."""
    user = group = None
    if security.HasField("run_as_user") and security.run_as_username:
        raise invalid("run_as_user and run_as_username exclude each other")
    if security.HasField("run_as_user"):
        user = str(_id("run_as_user", security.run_as_user.value))
    elif security.run_as_username:
        user = security.run_as_username
    if security.HasField("run_as_group"):
        if user is None:
            raise invalid("run_as_group needs run_as_user or run_as_username")
        group = str(_id("run_as_group", security.run_as_group.value))
    groups = tuple(_id("supplemental_groups", one) for one in security.supplemental_groups)
    return Identity(user, group, groups, _policy(security.supplemental_groups_policy))


def check_sandbox(security: cri.LinuxSandboxSecurityContext) -> None:
    """Checks the context of a sandbox. :raises RpcError: a field is wrong."""
    if security.HasField("run_as_user"):
        _id("run_as_user", security.run_as_user.value)
    if security.HasField("run_as_group"):
        if not security.HasField("run_as_user"):
            raise invalid("run_as_group needs run_as_user")
        _id("run_as_group", security.run_as_group.value)
    for one in security.supplemental_groups:
        _id("supplemental_groups", one)
    _policy(security.supplemental_groups_policy)
    for field, names in (("seccomp", "seccomp_profile_path"), ("apparmor", "")):
        _profile(security, field, names)
    _selinux(security.selinux_options, "")


def isolators(
    config: cri.ContainerConfig, sandbox: str, pod: cri.LinuxSandboxSecurityContext, *, foreign: bool = False
) -> Isolators:
    """The isolators of a container.

    :param sandbox: the ID of its sandbox. :param pod: the context of its sandbox.
    :param foreign: the stager has protections of its own, and applies no isolators: rkt's stage1. Then kubelet's
        usual lists of paths are left to it, and so is the filter of a container that shall have none.
    :raises RpcError: a field is wrong; the container is privileged, and its sandbox is not.
    """
    security = config.linux.security_context
    found: Isolators = []
    if security.privileged:
        if not pod.privileged:
            raise invalid("privileged: the sandbox of a privileged container must be privileged")
        found.append((_PRIVILEGED, True))
    else:
        found += _capabilities(security.capabilities)
        found += [one for one in _seccomp(security) if not foreign or one != _NO_FILTER]
        if config.linux.HasField("security_context"):
            # As given: kubelet sends its own lists, and empty ones for an unmasked /proc.
            for name, paths in (
                ("kurma.io/masked-paths", security.masked_paths),
                ("kurma.io/read-only-paths", security.readonly_paths),
            ):
                if not foreign or not _KUBELETS[name].issubset(paths):
                    found.append((name, list(paths)))
    if security.no_new_privs:
        found.append(("os/linux/no-new-privileges", True))
    found += _apparmor(security)
    options = security.selinux_options if security.HasField("selinux_options") else pod.selinux_options
    label = _selinux(options, sandbox)
    # Other runtimes ignore the options where the kernel has no SELinux, too.
    if label is not None and has_selinux():
        found.append((_SELINUX, label))
    devices = _devices(config.devices)
    if devices:
        found.append(("kurma.io/devices", devices))
    if config.CDI_devices:
        found.append(("kurma.io/cdi", [one.name for one in config.CDI_devices]))
    return found


def _id(field: str, number: int) -> int:
    if not 0 <= number <= MAX_ID:
        raise invalid(f"{field}: {number} is not an ID")
    return number


def _policy(number: cri.SupplementalGroupsPolicy) -> str:
    if number not in _POLICIES:
        raise invalid(f"supplemental_groups_policy: {number} is not a policy")
    return _POLICIES[number]


def container_user(pid: int | None, first: int) -> cri.ContainerUser | None:
    """The user and groups of a container's process; None: it does not run.

    :param pid: of its main process. :param first: the host's ID of user 0 in its user namespace.
    """
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            found = {key: value.split() for key, _, value in (line.partition(":") for line in file)}
        user, group = int(found["Uid"][0]) - first, int(found["Gid"][0]) - first
        groups = [int(number) - first for number in found["Groups"]]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    # As other runtimes report it: the group itself stands first.
    more = [group, *(number for number in groups if number != group)]
    return cri.ContainerUser(linux=cri.LinuxContainerUser(uid=user, gid=group, supplemental_groups=more))


def _capabilities(given: cri.Capability) -> Isolators:
    lists = {
        "add": list(given.add_capabilities),
        "drop": list(given.drop_capabilities),
        "ambient": list(given.add_ambient_capabilities),
    }
    return [("kurma.io/capabilities", lists)] if any(lists.values()) else []


def _profile(security: Any, field: str, deprecated: str) -> tuple[int, str] | None:
    """Kind and name of a profile, by its field or by the field that it replaced; None: neither is set."""
    if security.HasField(field):
        profile = getattr(security, field)
        if profile.profile_type == cri.SecurityProfile.Localhost and not profile.localhost_ref:
            raise invalid(f"{field}: a profile of type Localhost needs a localhost_ref")
        if profile.profile_type not in cri.SecurityProfile.ProfileType.values():
            raise invalid(f"{field}: {profile.profile_type} is not a type of profiles")
        return profile.profile_type, profile.localhost_ref
    text = getattr(security, deprecated) if deprecated else ""
    if not text:
        return None
    if text in _RUNTIME_DEFAULT:
        return cri.SecurityProfile.RuntimeDefault, ""
    if text == _UNCONFINED:
        return cri.SecurityProfile.Unconfined, ""
    if text.startswith(_LOCALHOST) and len(text) > len(_LOCALHOST):
        return cri.SecurityProfile.Localhost, text
    raise invalid(f"{deprecated}: expected runtime/default, unconfined or localhost/NAME, got {text!r}")


def _seccomp(security: cri.LinuxContainerSecurityContext) -> Isolators:
    found = _profile(security, "seccomp", "seccomp_profile_path")
    if found is None or found[0] == cri.SecurityProfile.Unconfined:
        return [_NO_FILTER]
    if found[0] == cri.SecurityProfile.RuntimeDefault:
        return []
    path = found[1].removeprefix(_LOCALHOST)
    if not path.startswith("/"):
        raise invalid(f"seccomp: the localhost profile {path!r} must be an absolute path")
    return [(_SECCOMP, {"path": path})]


def _apparmor(security: cri.LinuxContainerSecurityContext) -> Isolators:
    """A profile that is not loaded, or that this kernel cannot enforce, fails when the container is created."""
    found = _profile(security, "apparmor", "apparmor_profile")
    if found is None or found[0] == cri.SecurityProfile.RuntimeDefault:
        # Kurma brings no profile: an app has Kurma's own confinement, and a privileged one none.
        return [(_APPARMOR, _UNCONFINED)] if security.privileged else []
    if found[0] == cri.SecurityProfile.Unconfined:
        return [(_APPARMOR, _UNCONFINED)]
    return [(_APPARMOR, {"profile": found[1].removeprefix(_LOCALHOST)})]


def _selinux(options: cri.SELinuxOption, sandbox: str) -> dict[str, str] | None:
    """The context of these options; None: none is set. Without a level, it gets categories of the sandbox.

    :raises RpcError: a part is not a word of SELinux.
    """
    given = {part: getattr(options, part) for part in ("user", "role", "type", "level")}
    if not any(given.values()):
        return None
    for part, text in given.items():
        allowed = "_.-:," if part == "level" else "_.-"
        if not all((letter.isascii() and letter.isalnum()) or letter in allowed for letter in text):
            raise invalid(f"selinux_options: {part}: {text!r} is not a word of SELinux")
    parts = {part: given[part] or usual for part, usual in _CONTEXT.items()}
    return {**parts, "level": given["level"] or selinux_level(sandbox)}


def has_selinux() -> bool:
    """Whether the kernel has SELinux."""
    return os.path.isdir(_SELINUX_PLACE)


def selinux_level(sandbox: str) -> str:
    """A level with two categories, which the containers of a sandbox share. :param sandbox: its ID; different ones
    may have the same level."""
    number = int.from_bytes(hashlib.sha256(sandbox.encode()).digest()[:8])
    first = number % _CATEGORIES
    second = (first + 1 + number // _CATEGORIES % (_CATEGORIES - 1)) % _CATEGORIES
    low, high = sorted((first, second))
    return f"s0:c{low},c{high}"


def _devices(devices: Iterable[cri.Device]) -> list[Json]:
    """The devices as ``kurma.io/devices`` has them, without those that every app has."""
    found: dict[str, Json] = {}
    for device in devices:
        path = device.container_path or device.host_path
        if device.host_path == path and path in _USUAL:
            continue
        if not path.startswith("/dev/"):
            raise invalid(f"devices: container_path {path!r} must be below /dev")
        found[path] = {"path": path, "hostPath": device.host_path, "access": device.permissions or "rwm"}
    return list(found.values())
