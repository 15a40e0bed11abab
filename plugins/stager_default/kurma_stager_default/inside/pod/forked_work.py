"""Work that the supervisor does in forked children, so that it does not block: removal of an app's files, and
commands that the core wants to be run. Imported at the first request.

A child has the supervisor's modules, so that it needs no new interpreter; it ends by ``os._exit``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

from kurma_core.linux import beneath, clone, namespaces, process
from kurma_core.linux.cgroups import CgroupTree
from kurma_stager_default.inside.errors import complain
from kurma_stager_default.inside.pod.control_socket import Refusal
from kurma_stager_default.inside.streams import app_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_stager_default.inside.pod.control_socket import Conversation
    from kurma_stager_default.inside.pod.supervisor import Supervisor

_FAILED = 125
_STREAMS = 3
# Cgroup of commands, beside those of the apps.
_GROUP = "callins"


def _fork(fork: Callable[[], int]) -> int:
    """Forks a child in the supervisor's own PID namespace: other children are in the pod's."""
    pods = os.open("/proc/self/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.setns(own, namespaces.CLONE_NEWPID)
        try:
            return fork()
        finally:
            namespaces.setns(pods, namespaces.CLONE_NEWPID)
    finally:
        os.close(pods)
        os.close(own)


def remove_files(supervisor: Supervisor, name: str, done: Callable[[str], None]) -> None:
    """Removes the cgroup and the files of an app that the supervisor does not know any more.

    :param done: called at the end, with the reason why it failed, or an empty text.
    """
    words = os.memfd_create("reason", os.MFD_CLOEXEC)
    pid = _fork(os.fork)
    if pid == 0:
        code = 1
        try:
            clean(supervisor.groups.app(name), name)
            code = 0
        except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
            os.write(words, str(error).encode(errors="replace")[:2048])
        finally:
            os._exit(code)

    def ended(status: int) -> None:
        text = os.pread(words, 2048, 0).decode(errors="replace")
        os.close(words)
        done((text or "it was interrupted") if status else "")

    supervisor.helpers[pid] = ended


def clean(tree: CgroupTree, name: str) -> None:
    """Removes the cgroup, the root, the logs and the hosts file of an app. Repeatable."""
    tree.kill()
    tree.remove()
    apps = os.open("/pod/apps", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        beneath.remove_tree(apps, name)
    finally:
        os.close(apps)
    for file in os.listdir("/pod/logs"):
        if app_log.app_of(file) == name:
            os.unlink(f"/pod/logs/{file}")
    try:  # noqa: SIM105 - contextlib costs every call
        os.unlink(f"/pod/hosts/{name}")
    except FileNotFoundError:
        pass


def run(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Handles the request ``{"do": "run", "app": NAME}``, which carries standard input, output and error, and a
    file with the command (see :mod:`kurma_stager_default.inside.callins.run`).

    The answer is ``{"exited": CODE}``. The client sends ``{"signal": NUMBER}``; if it goes away, the command gets
    SIGTERM.
    """
    # Imported here, in the supervisor, so that the next commands find them loaded.
    from kurma_core.formats import small_json
    from kurma_core.linux import exec_errors  # noqa: F401
    from kurma_core.trees import user_database  # noqa: F401
    from kurma_stager_default.inside.callins import command_group  # noqa: F401
    from kurma_stager_default.inside.callins import run as call_in

    if len(conversation.fds) != _STREAMS + 1:
        raise Refusal("a command needs three streams and a file", 2)
    name: str = request["app"]
    text = os.pread(conversation.fds[_STREAMS], call_in.LIMIT, 0)
    value = small_json.decode(text.decode())
    tree = CgroupTree(_GROUP, supervisor.groups.layout)
    tree.create()
    pid = _fork(lambda: clone.fork_into(tree.directories()))
    if pid == 0:
        code = _FAILED
        try:
            _become(conversation.fds[:_STREAMS])
            code = call_in.run_given(name, value)
        except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
            complain(f"kurma: {error}")
        finally:
            os._exit(code)
    for fd in conversation.fds:
        os.close(fd)
    conversation.fds = []

    def ended(status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        conversation.on_end = None
        conversation.answer({"exited": code if code >= 0 else 128 - code})
        conversation.end()

    def signalled(said: dict[str, Any]) -> None:
        if pid in supervisor.helpers:  # it was not reaped
            os.kill(pid, int(said["signal"]))

    supervisor.helpers[pid] = ended
    conversation.on_packet = signalled
    conversation.on_end = lambda: signalled({"signal": _signal.SIGTERM})


def _become(fds: list[int]) -> None:
    """Makes a process like a call-in's of a forked child: its streams, no other descriptor, its own session, no
    signal handlers."""
    process.set_pdeathsig(_signal.SIGKILL)
    _signal.set_wakeup_fd(-1)
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_DFL)
    os.setsid()
    # Above the numbers that they get.
    held = [os.dup(fd) for fd in fds]
    for number, fd in enumerate(held):
        os.dup2(fd, number)
    process.close_others({0, 1, 2})
