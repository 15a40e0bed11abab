"""Changes the settings of an app's cgroup while the app runs: all of them or none. Few pods load it."""

from __future__ import annotations

import errno
import os

from kurma_core.linux.cgroups import CgroupTree
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import Plan

#: Values that mean no limit, for settings that a new plan does not have any more.
_NO_LIMIT = {
    "cpu.max": "max 100000",
    "cpu.weight": "100",
    "cpu.cfs_quota_us": "-1",
    "cpu.cfs_period_us": "100000",
    "cpu.shares": "1024",
    "memory.max": "max",
    "memory.high": "max",
    "memory.low": "0",
    "memory.swap.max": "max",
    "memory.limit_in_bytes": "-1",
    "memory.memsw.limit_in_bytes": "-1",
    "memory.soft_limit_in_bytes": "-1",
    "pids.max": "max",
}
#: Files with a value for each device.
_BY_DEVICE = ("io.", "blkio.")
#: Errors of a value that the kernel may take after another file has its new value: a limit of memory and swap must
#: not be below that of memory, nor a quota above that of the parent over the present period.
_LATER = (errno.EINVAL, errno.EBUSY)

Write = tuple[str, str, str]  # controller, file, value


def change(tree: CgroupTree, before: Plan, after: Plan) -> None:
    """Writes the settings of ``after`` that differ from those of ``before``.

    :raises SetupError: the kernel refuses one; the earlier values are in force.
    """
    wanted = _differences(before, after)
    _check_memory(tree, wanted)
    try:
        earlier = [_earlier(tree, one, before) for one in wanted]
    except OSError as error:
        raise SetupError(f"its cgroup: {error.filename}: {error.strerror}") from None
    try:
        _write_all(tree, wanted)
        if after.oom_score_adj != before.oom_score_adj:
            _score(tree, 0 if after.oom_score_adj is None else after.oom_score_adj)
    except OSError as error:
        try:  # noqa: SIM105 - contextlib costs every call
            _write_all(tree, earlier)
        except OSError:
            pass  # tell of the first error
        raise SetupError(f"its cgroup: {error.filename}: {error.strerror}") from None


def _differences(before: Plan, after: Plan) -> list[Write]:
    old, new = _last_values(before), _last_values(after)
    found = [(*key[:2], value) for key, value in new.items() if old.get(key) != value]
    gone = [key[:2] for key in old if key not in new]
    return [*found, *((*key, _NO_LIMIT[key[1]]) for key in gone if key[1] in _NO_LIMIT)]


def _last_values(plan: Plan) -> dict[tuple[str, str, str], str]:
    """The value that counts of each file; of files with a value for each device, by device."""
    found = {}
    for setting in plan.cgroup:
        device = setting["value"].split()[0] if setting["file"].startswith(_BY_DEVICE) else ""
        found[setting["controller"], setting["file"], device] = setting["value"]
    return found


def _check_memory(tree: CgroupTree, wanted: list[Write]) -> None:
    """Refuses a limit below the present use on cgroup v2, where the kernel would kill processes instead."""
    for controller, file, value in wanted:
        if file == "memory.max" and value.isdigit():
            used = int(tree.read(controller, "memory.current"))
            if used > int(value):
                raise SetupError(f"its cgroup: memory.max: {value} bytes are less than the {used} in use")


def _earlier(tree: CgroupTree, one: Write, before: Plan) -> Write:
    controller, file, value = one
    if file.startswith(_BY_DEVICE):
        key = (controller, file, value.split()[0])
        return controller, file, _last_values(before).get(key, f"{key[2]} max")
    # An empty text alone writes nothing.
    return controller, file, tree.read(controller, file) or "\n"


def _write_all(tree: CgroupTree, wanted: list[Write]) -> None:
    """Writes in an order that the kernel takes. :raises OSError: there is none."""
    left = list(wanted)
    while left:
        refused: list[Write] = []
        failure: OSError | None = None
        for one in left:
            try:
                tree.write(*one)
            except OSError as error:
                if error.errno not in _LATER:
                    raise
                refused.append(one)
                failure = failure or error
        if failure is not None and len(refused) == len(left):
            raise failure
        left = refused


def _score(tree: CgroupTree, score: int) -> None:
    for pid in tree.pids():
        try:
            fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # it has ended
        try:
            os.write(fd, str(score).encode())
        except ProcessLookupError:
            continue
        except OSError as error:
            raise OSError(error.errno, error.strerror, "oom_score_adj") from None
        finally:
            os.close(fd)
