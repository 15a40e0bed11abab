"""Gives a child the app's user, capabilities, limits, filters and environment, and executes the program.

The app's main process, its event handlers and commands that are run in it later take the same steps, so that all
have the same rights.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os

from kurma_core.linux import capabilities, execute, libc, namespaces
from kurma_stager_default.inside.app import sandbox
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import PATH, App, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kurma_core.trees import user_database
    from kurma_stager_default.inside.user_namespace import Ids

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_KEYCTL_JOIN_SESSION_KEYRING = 1
_OOM = "/proc/self/oom_score_adj"
# The kernel's OOM killer takes a process with this score last. With −1000 it would never take it.
_LAST = "-999"
# The score that the stager was started with.
_before: list[str] = []
_KEYLESS: list[bytes] = []
_CAP_SYS_PTRACE = 19
_CAP_SYS_ADMIN = 21
_CAP_PERFMON = 38
# Signals that the supervisor catches or the interpreter ignores.
_CHANGED = (
    _signal.SIGCHLD,
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGWINCH,
    _signal.SIGPIPE,
    _signal.SIGXFSZ,
)


def needs_domain(plan: Plan) -> bool:
    """Whether the app gets a Landlock domain: not with CAP_SYS_ADMIN, since a domain forbids to mount."""
    return _CAP_SYS_ADMIN not in granted(plan)


def wall_notes(apps: Sequence[App]) -> tuple[str, str]:
    """Notes for the user: how these apps are kept apart in ``/proc`` and in keyrings, and which apps are not."""
    free = [app.name for app in apps if not needs_domain(app.plan)]
    if not sandbox.landlock_usable():
        proc = (
            "landlock: not on this kernel; apps of the same user and capabilities reach each other through /proc"
        )
    elif not free:
        proc = "landlock: each app has a domain of its own; apps do not reach each other through /proc"
    elif len(free) == len(apps):
        proc = "landlock: no app has a domain, since all may mount (CAP_SYS_ADMIN)"
    else:
        proc = (
            f"landlock: each app but {', '.join(free)} has a domain of its own; they do not reach others through"
            " /proc"
        )
    keys = "keys: each app has a session keyring of its own"
    free = [app.name for app in apps if app.plan.keyrings]
    if not sandbox.filters_usable():
        why = "this kernel has no filters of system calls"
        keys += f"; {why}, so an app reaches the keyrings of the host's user of the same ID"
    elif not free:
        keys += ", and may not call on others"
    else:
        keys += f"; {', '.join(free)} may call on others"
    return proc, keys


def power_note(app: App, ids: Ids) -> str | None:
    """A note for the user on an app whose rights let it pass the barriers between apps; None: it has none such."""
    rights = granted(app.plan)
    if app.plan.privileged and _CAP_SYS_ADMIN in rights:
        bounds = "as far as its pod's user namespace goes" if ids.path else "and so power over the host"
        return f"app {app.name}: privileged: all capabilities and devices, nothing masked or filtered, {bounds}"
    if _CAP_SYS_ADMIN not in rights:
        if _CAP_SYS_PTRACE in rights and not ids.path and not sandbox.landlock_usable():
            return (
                f"app {app.name}: CAP_SYS_PTRACE without Landlock lets it reach what sets up other apps: the host"
            )
        if _CAP_PERFMON in rights:
            return f"app {app.name}: CAP_PERFMON lets it read other apps' environment and maps on newer kernels"
        return None
    note = f"app {app.name}: no Landlock domain, since it may mount (CAP_SYS_ADMIN)"
    if ids.path:
        # Its mounts are locked in the namespace, and a child of the stager belongs to the host until exec.
        return note + "; it can reach apps of the pod that have no more capabilities"
    note += "; it can undo what is masked or read-only for it, and reach apps that have no more capabilities"
    if _CAP_SYS_PTRACE in rights:
        note += "; with CAP_SYS_PTRACE also what sets up other apps, and so the host"
    return note


def granted(plan: Plan) -> frozenset[int]:
    if plan.capabilities is None:
        return capabilities.DEFAULT_SET
    return frozenset([capabilities.parse(name) for name in plan.capabilities])


def clean_process() -> None:
    """Resets the signal handling that a child inherits from its Python parent, and sets a usual umask."""
    _signal.set_wakeup_fd(-1)
    for number in _CHANGED:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    os.umask(0o022)


def step_back() -> None:
    """Lowers the stager's OOM score, so that the kernel kills apps first if the pod's memory is short. The stager
    calls it before it has children; apps get the old score back in :func:`apply_limits`."""
    try:
        with open(_OOM) as file:
            _before.append(file.read())
        with open(_OOM, "w") as file:
            file.write(_LAST)
    except OSError:
        _before.clear()  # not permitted: the stager keeps its score


def apply_limits(plan: Plan) -> None:
    """Sets the OOM score, resource limits, scheduling, I/O priority, memory policy and security labels. Runs as
    the host's root before the change of root, with a ``/proc`` that shows this process.

    :raises SetupError: the kernel refuses one.
    """
    # Import these before the change of root, after which their files cannot be found. The supervisor does not need
    # them in its memory.
    from kurma_core.linux import exec_errors  # noqa: F401
    from kurma_core.trees import mount_targets, user_database  # noqa: F401

    wanted = _before[:1] if plan.oom_score_adj is None else [str(plan.oom_score_adj)]
    for value in wanted:
        try:
            with open(_OOM, "w") as file:
                file.write(value)
        except OSError as error:
            raise SetupError(f"cannot set oom_score_adj to {value.strip()}: {error.strerror}") from None
    if plan.rlimits or plan.scheduling or plan.io_priority or plan.memory_policy:
        from kurma_stager_default.inside.app import process_settings

        process_settings.apply(plan)
    if plan.apparmor or plan.selinux:
        from kurma_stager_default.inside.app import security_labels

        security_labels.set_for_exec(plan)


def _no_keys() -> bytes:
    """The filter that refuses the keyring system calls; it is the same for all apps."""
    if not _KEYLESS:
        _KEYLESS.append(sandbox.refuse_keys())
    return _KEYLESS[0]


def prepare() -> None:
    """Makes the keyring filter, which does not depend on the app."""
    _no_keys()


class Identity:
    """The user and groups that the process changes to."""

    __slots__ = ("groups", "user")

    def __init__(self, user: user_database.User, groups: list[int]) -> None:
        self.user = user
        self.groups = groups


def resolve(user: str, group: str, groups: list[int]) -> Identity:
    """Looks up the user and group in this process's current root. An empty group: the user's own groups.

    :raises SetupError: there is no such user or group.
    """
    from kurma_core.trees import user_database

    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = user_database.find_user(root, user)
        more = list(groups)
        if group:
            found.gid = user_database.find_group(root, group)
        elif found.name is not None:
            more += user_database.groups_of(root, found.name)
        return Identity(found, list(dict.fromkeys(more)))
    except LookupError as error:
        raise SetupError(str(error)) from None
    except OSError as error:
        raise SetupError(f"user {user!r}, group {group!r}: {error.filename}: {error.strerror}") from None
    finally:
        os.close(root)


def environment_of(
    app: App, user: user_database.User, extra: list[tuple[str, str]], *, terminal: bool = False
) -> dict[str, str]:
    """The environment of the process.

    :param extra: variables that override the app's own.
    :param terminal: the process has a terminal, and needs ``TERM``.
    """
    found = {"PATH": PATH}
    if terminal:
        found["TERM"] = "xterm"
    if user.name is not None:
        found["USER"] = found["LOGNAME"] = user.name
    found["HOME"] = user.home or "/"
    if user.shell is not None:
        found["SHELL"] = user.shell
    found.update(app.environment)
    found.update(extra)
    found["AC_APP_NAME"] = app.name
    found["container"] = "kurma"
    return found


def become(
    app: App,
    argv: list[str],
    identity: Identity,
    environment: dict[str, str],
    directory: str,
    ready: Callable[[], None],
) -> None:
    """Gives up all rights that were not granted, changes user, and executes the program. Runs as root in the app's
    root; it never returns.

    :param ready: called when only the plan's filter of system calls, and exec, remain to be done.
    :raises SetupError: a step before exec failed.
    :raises ExecuteError: exec failed.
    """
    plan = app.plan
    user = identity.user
    keep = granted(plan)
    # Until exec this process has the stager's memory and descriptors: processes of the app must not trace it.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    # The process was forked into the app's cgroup, which becomes the root of its cgroup namespace.
    namespaces.unshare(namespaces.CLONE_NEWCGROUP)
    _leave_keyring()
    if plan.no_new_privileges:
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _CAP_SYS_ADMIN not in keep and sandbox.landlock_usable():
        sandbox.enter_landlock_domain()
    # The steps that follow use no keyring system calls, so the filter can be set here.
    if not plan.keyrings and sandbox.filters_usable():
        _filter(_no_keys())()

    def change_user() -> None:
        os.setgroups(identity.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)

    # seccomp(2) needs CAP_SYS_ADMIN or no_new_privs. The app has not asked for the latter, so keep the capability.
    late = frozenset([_CAP_SYS_ADMIN]) if plan.seccomp and not plan.no_new_privileges else frozenset[int]()
    ambient = frozenset([capabilities.parse(name) for name in plan.ambient])
    capabilities.apply(keep, user.uid, granted=ambient, until_exec=late, become=change_user)
    try:
        # After the change of user, so that the app's user must be allowed to enter the directory.
        os.chdir(directory)
    except OSError as error:
        raise SetupError(f"the working directory {directory} {_no_directory(error, user.uid)}") from None
    if plan.umask is not None:
        # Late: the child makes the app's root with its own.
        os.umask(plan.umask)
    if plan.rlimits:
        from kurma_stager_default.inside.app import process_settings  # loaded before the change of root

        process_settings.limit(plan.rlimits)
    ready()
    try:
        if plan.seccomp:
            # Last, since the filter binds this process, too: only exec comes after it.
            put_on = _filter(plan.seccomp)

            def last() -> None:
                capabilities.use_all()
                put_on()

            execute.execute_after(last, argv, environment)
        execute.execute(argv, environment)
    except execute.ExecuteError as error:
        if plan.apparmor or plan.selinux:
            from kurma_stager_default.inside.app import security_labels

            raise security_labels.explained(error, plan) from None
        raise


def _no_directory(error: OSError, uid: int) -> str:
    if error.errno == errno.ENOENT:
        return "does not exist"
    if error.errno == errno.ENOTDIR:
        return "is not a directory"
    if error.errno == errno.EACCES:
        return f"may not be entered by user {uid}"
    if error.errno == errno.ELOOP:
        return "leads over too many symbolic links"
    return f"cannot be entered: {error.strerror}"


def _filter(program: bytes) -> Callable[[], None]:
    """Prepares a filter of system calls. :returns: a function that puts it on this process."""

    def put_on() -> None:
        try:
            ready.put_on()
        except OSError as error:
            raise SetupError(f"cannot install the system call filter: {error.strerror}") from None

    try:
        ready = sandbox.Filter(program)
    except OSError as error:
        raise SetupError(f"cannot install the system call filter: {error.strerror}") from None
    return put_on


def _leave_keyring() -> None:
    """Joins a new session keyring: the inherited one belongs to the user who started the pod, with their keys."""
    try:
        libc.syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        # The kernel has no keyrings, or does not permit the call; the app cannot make the call either then.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise SetupError(f"cannot make a session keyring: {error.strerror}") from None
