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
from kurma_core.hookspecs.driver import HostCheck, kernel_hint, module_hint, setting_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.client.client import Client
    from kurma_core.client.local.managers import Managers
    from kurma_core.linux.cgroups import Layout
    from kurma_core.plugins.registry import PluginRegistry

#: Seconds that all plugins together have.
PATIENCE = 5.0
#: Controllers without which common isolators have no effect. One of several names: v2's and v1's.
_CONTROLLERS = (("cpu",), ("memory",), ("pids",), ("io", "blkio"))
_NAMESPACES = ("ipc", "mnt", "net", "pid", "uts")
#: The capabilities that Kurma itself uses.
_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_SETGID"),
    *("CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE"),
)
#: The oldest release of the kernel that Kurma is made for.
_KERNEL = (5, 10)
#: System calls that Kurma uses, with arguments that a kernel which has them refuses, or that change nothing.
_SYSTEM_CALLS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("clone3", (0, 0)),
    ("close_range", (1, 0)),
    ("openat2", (-1, 0, 0, 0)),
    ("pidfd_open", (-1,)),
    ("pidfd_send_signal", (-1, 0, 0, 0)),
)
#: Programs by the Debian package that has them.
_PROGRAMS = {"gpg": "gpg", "gpg-agent": "gpg-agent"}
#: Bytes and inodes that must be free for the next image.
_LEAST_BYTES, _LEAST_INODES = 1 << 30, 10_000
#: Where a Raspberry Pi keeps the kernel's command line; its firmware disables the memory controller.
_COMMAND_LINES = ("/boot/firmware/cmdline.txt", "/boot/cmdline.txt")
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_REBOOT = "a new kernel takes effect after a reboot"
_AS_ROOT = "run Kurma as root: sudo kurma list"


def host_checks(managers: Managers, patience: float = PATIENCE) -> Iterator[HostCheckInfo]:
    """Yields the results of the core's checks, then of plugins by kind and name. Plugins are asked at the same
    time; one that does not answer in time is cancelled, and its check fails.

    :param patience: in seconds.
    """
    from kurma_core.linux.cgroups import Layout

    try:
        layout = Layout.of_host()
    except OSError:
        layout = Layout(())  # not even /proc is mounted
    space = of_space(managers.config.state_dir)
    for check in (*of_process(), of_kernel(), *of_host(layout), *of_programs(), space):
        yield _result("kurma", check)
    asked = [
        _Asking(managers.registry, group, name) for group in GROUPS for name in managers.registry.enabled(group)
    ]
    end = time.monotonic() + patience
    for one in asked:
        for check in one.checks(end):
            yield _result(one.plugin, check)


def _result(by: str, check: HostCheck) -> HostCheckInfo:
    # People paste hints: a host that lacks nothing needs none.
    return HostCheckInfo(by, check.name, check.ok, check.detail, "" if check.ok else check.hint)


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


def of_process(status: str = "/proc/self/status") -> Iterator[HostCheck]:
    """Whether this process has the rights that Kurma needs.

    :param status: the file with its capabilities.
    """
    if os.geteuid() != 0:
        yield HostCheck("rights", False, "this process is not root", _AS_ROOT)
        return
    from kurma_core.linux.capabilities import NAMES

    found = [line.split() for line in _read(status).splitlines() if line.startswith("CapEff:")]
    bits = int(found[0][1], 16) if found else 0
    missing = [name for name in _CAPABILITIES if not bits >> NAMES.index(name) & 1]
    options = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
    yield _check(
        "rights",
        f"this process lacks {', '.join(missing)}" if missing else "",
        f"give the container the capabilities: podman run {options}",
    )


def of_kernel(release: str = "", status: str = "/proc/self/status") -> HostCheck:
    """The kernel's release, and system calls.

    :param release: empty: that of the running kernel. :param status: the file that says whether this process has a
        seccomp filter.
    """
    import errno

    from kurma_core.linux import libc

    release = release or os.uname().release
    numbers = [int(one) if one.isdecimal() else 0 for one in release.replace("-", ".").split(".")]
    if tuple(numbers[:2]) < _KERNEL:
        least = ".".join(map(str, _KERNEL))
        return HostCheck(
            "kernel", False, f"it is {release}, but Kurma needs {least} or later; {_REBOOT}", kernel_hint()
        )
    missing = []
    for name, arguments in _SYSTEM_CALLS:
        try:
            libc.syscall(name, *arguments)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                missing.append(name)
    lacks = f"it has no {', '.join(missing)}" if missing else ""
    # Every kernel of that release has these calls; filters of containers answer ENOSYS for calls they do not know.
    if lacks and "Seccomp:\t2\n" in _read(status):
        return HostCheck(
            "kernel",
            False,
            f"{lacks} here: the filter of this container refuses it",
            "update the engine of the container, or start it with a seccomp profile that allows "
            f"{', '.join(missing)}",
        )
    return _check("kernel", lacks and f"{lacks}; {_REBOOT}", kernel_hint())


def of_host(layout: Layout, root: str = "/") -> Iterator[HostCheck]:
    """Checks files of the kernel.

    :param layout: the hierarchies of cgroups. :param root: the directory that holds ``/proc`` and ``/boot``.
    """
    yield _cgroups(layout, root)
    missing = [name for name in _NAMESPACES if not os.path.exists(f"{root}/proc/self/ns/{name}")]
    yield _check(
        "namespaces",
        f"the kernel has none of {', '.join(missing)}; {_REBOOT}" if missing else "",
        kernel_hint(),
    )
    most = _read(f"{root}/proc/sys/user/max_user_namespaces").strip()
    if most:
        lacks = "the kernel allows none, which --userns needs" if most == "0" else ""
        yield _check("user namespaces", lacks, setting_hint("user.max_user_namespaces", "15000"))
    else:
        lacks = f"the kernel has none, which --userns needs; {_REBOOT}"
        yield _check("user namespaces", lacks, kernel_hint())
    filters = os.path.exists(f"{root}/proc/sys/kernel/seccomp/actions_avail")
    yield _check("seccomp", "" if filters else f"the kernel filters no system calls; {_REBOOT}", kernel_hint())
    known = any(line.split()[-1:] == ["overlay"] for line in _read(f"{root}/proc/filesystems").splitlines())
    yield _check("overlay", "" if known else "the kernel has no overlay", module_hint("overlay"))


def _cgroups(layout: Layout, root: str) -> HostCheck:
    if layout.kind == "none":
        return _check("cgroups", "none are mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    for one in layout.hierarchies:
        if os.geteuid() == 0 and not os.access(one.directory, os.W_OK):
            return _check("cgroups", f"{one.directory} is read-only", f"mount -o remount,bind,rw {one.directory}")
    here = layout.versions()
    missing = [names for names in _CONTROLLERS if not here.keys() & set(names)]
    if not missing:
        return HostCheck("cgroups", True)
    detail, hint = _controllers_missing(layout, root, [name for names in missing for name in names])
    lacks = ", ".join(" or ".join(names) for names in missing)
    return HostCheck("cgroups", False, f"the controllers {lacks} are missing: {detail}", hint)


def _controllers_missing(layout: Layout, root: str, missing: list[str]) -> tuple[str, str]:
    """Why controllers are missing, and the command that adds them."""
    from kurma_core.linux.cgroups import CGROUP_ROOT

    # Name, hierarchy, number of cgroups, enabled.
    rows = [line.split() for line in _read(f"{root}/proc/cgroups").splitlines() if not line.startswith("#")]
    disabled = [name for name, _, _, enabled in rows if name in missing and enabled == "0"]
    if disabled:
        for file in _COMMAND_LINES:
            if os.path.exists(f"{root}{file}"):
                words = " ".join(f"cgroup_enable={name}" for name in disabled)
                return (
                    "the kernel disables them; the hint takes effect after a reboot",
                    f"sed -i '1s/$/ {words}/' {file}",
                )
        return (
            "the kernel disables them; the hint takes effect after a reboot",
            f"remove {', '.join(disabled)} from cgroup_disable= on the kernel's command line",
        )
    unified = [one.directory for one in layout.hierarchies if one.version == 2]
    # The root of the host's hierarchy has no such file.
    if unified and os.path.exists(f"{unified[0]}/cgroup.type"):
        return (
            "the host does not delegate them to this container; the hint shows all cgroups of the host to it",
            "start the container with the host's cgroups: podman run --cgroupns host",
        )
    hierarchies = {name: number for name, number, _, _ in rows}
    absent = {name: hierarchies[name] for name in missing if name in hierarchies}
    if absent and layout.kind == "v2":
        return "a hierarchy of cgroup v1 has them", "unmount that hierarchy: findmnt -t cgroup shows it"
    if absent:
        # Controllers that share a hierarchy can be mounted only together; "0" stands for no hierarchy.
        together = {
            ",".join(other for other in hierarchies if number != "0" and hierarchies[other] == number) or name
            for name, number in absent.items()
        }
        mounts = [
            f"mkdir -p {CGROUP_ROOT}/{names} && mount -t cgroup -o {names} cgroup {CGROUP_ROOT}/{names}"
            for names in sorted(together)
        ]
        return "their hierarchy is not mounted", " && ".join(mounts)
    return f"the kernel was built without them; {_REBOOT}", kernel_hint()


def of_programs() -> Iterator[HostCheck]:
    """Whether the programs are there that the core runs."""
    from kurma_core.linux.programs import find_program

    missing = [package for program, package in _PROGRAMS.items() if find_program(program) is None]
    yield _check(
        "programs",
        f"{', '.join(missing)}: not installed; signatures of images need it" if missing else "",
        f"apt-get install {' '.join(missing)}",
    )
    if os.geteuid() == 0:
        from kurma_core.spawner.client import Spawner

        spawner = Spawner()
        try:
            spawner.open()
            spawner.probe()
        except KurmaError as error:
            yield HostCheck("spawner", False, error.message, error.hint or "")
        else:
            yield HostCheck("spawner", True)
        finally:
            spawner.close()


def of_space(directory: str, least: tuple[int, int] = (_LEAST_BYTES, _LEAST_INODES)) -> HostCheck:
    """Whether the file system of the state directory has room.

    :param directory: it may not exist yet.
    :param least: bytes and inodes that must be free.
    """
    absent = ""
    while not os.path.isdir(directory) and directory not in ("/", ""):
        absent = absent or f"{directory} does not exist yet"
        directory = os.path.dirname(directory)
    try:
        found = os.statvfs(directory or ".")
    except OSError as error:
        return HostCheck("space", False, f"{directory}: {error.strerror}")
    free, inodes = found.f_bavail * found.f_frsize, found.f_favail
    detail = ""
    if free < least[0]:
        detail = f"{directory}: {free >> 20} MiB are free"
    elif found.f_files and inodes < least[1]:
        detail = f"{directory}: {inodes} inodes are free"
    if detail:
        return _check("space", detail, "kurma system prune")
    return HostCheck("space", True, absent)


def all_checks(client: Client) -> list[HostCheckInfo]:
    """The check of kurmad, and those of the host, which kurmad makes if it runs."""
    return [_result("kurma", of_kurmad(client)), *client.host_checks()]


def of_kurmad(client: Client) -> HostCheck:
    """The kurmad of the state directory: its version, and whether this user may use it."""
    from kurma_core import VERSION

    name, sudo = "kurmad", "" if os.geteuid() == 0 else "sudo "
    if client.remote:
        version, daemon = client.version().version, client.info().daemon
        if version == VERSION or daemon is None:
            return HostCheck(name, True, f"it runs, version {version}")
        unit = "kurmad.service" in _read(f"/proc/{daemon.pid}/cgroup")
        hint = f"{sudo}systemctl restart kurmad" if unit else f"{sudo}kill {daemon.pid}"
        return _check(name, f"version {version} runs, and this is {VERSION}; pods survive its restart", hint)
    if client.here.refused is not None:
        import pwd

        group = client.here.group_of_kurmad()
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
        if not group:
            return _check(name, "only root may use it", _AS_ROOT)
        lacks = (
            f"{user} may not use it; members of the group {group} may, from their next login, and can become root"
        )
        return _check(name, lacks, f"sudo usermod -aG {group} {user}")
    if os.geteuid() != 0:
        return _check(name, "none runs, and only root can start it", start_of_kurmad(client.config.run_dir))
    return HostCheck(name, True, "none runs; a command that needs it starts it")


def start_of_kurmad(run_dir: str, units: tuple[str, ...] = _UNITS) -> str:
    """The command by which a user has a kurmad started.

    :param run_dir: the directory of its socket. :param units: directories of systemd's units.
    """
    from kurma_core.client import SOCKET

    socket = f"ListenStream={run_dir}/{SOCKET}\n"
    if any(socket in _read(f"{directory}/kurmad.socket") for directory in units):
        return "sudo systemctl start kurmad.socket"
    return _AS_ROOT


def _check(name: str, lacks: str, hint: str) -> HostCheck:
    """:param lacks: empty: the host has what is needed. :param hint: what mends it."""
    return HostCheck(name, not lacks, lacks, hint if lacks else "")


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
