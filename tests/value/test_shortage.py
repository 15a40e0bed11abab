"""Errors about a limit of the host say which it is."""

import errno
import os

import pytest

from kurma_core.daemon.http.error_status import internal_error
from kurma_core.errors import HostError, StagerError
from kurma_core.shortage import no_inodes, words

NO_SPACE, BUSY = os.strerror(errno.ENOSPC), os.strerror(errno.EAGAIN)
LIMIT = "the limit of processes and threads is reached"


def test_processes_and_threads():
    for error, what in (
        (BlockingIOError(errno.EAGAIN, BUSY), "process"),
        (RuntimeError("can't start new thread"), "thread"),
    ):
        assert words(error) == f"cannot start a {what}: {LIMIT}"
        for found in (HostError.of_shortage(error), internal_error(error)):
            assert found.message == f"cannot start a {what}: {LIMIT}"
            assert "TasksMax=" in found.hint
    found = HostError(f"cannot execute gpg: {BUSY}", errno=errno.EAGAIN)
    assert found.message == f"cannot execute gpg: {LIMIT}"
    # As a client builds the daemon's error again.
    assert HostError(found.message, hint=found.hint, errno=errno.EAGAIN).message == found.message


@pytest.mark.parametrize(
    "error", [OSError(errno.EAGAIN, "the tree changes too fast"), RuntimeError("x"), KeyError(1)]
)
def test_other_errors(error):
    assert HostError.of_shortage(error) is None
    assert words(error) == f"{type(error).__name__}: {error}"


def test_no_space(tmp_path):
    assert not no_inodes(str(tmp_path / "gone" / "away"))
    assert not no_inodes("relative")
    found = HostError.of_shortage(OSError(errno.ENOSPC, NO_SPACE, "link", None, "/dev/shm/x"))
    assert (found.message, found.data["path"]) == (f"cannot write /dev/shm/x: {NO_SPACE}", "/dev/shm/x")
    assert found.hint == "make room there"
    # An output of the caller's.
    assert HostError.of_shortage(OSError(errno.ENOSPC, NO_SPACE)) is None


def test_a_stager_that_could_not_make_an_overlay(tmp_path):
    """The kernel makes an overlay read-only for which it finds no room."""
    error = StagerError(f"the pod cannot be started: hosts: {os.strerror(errno.EROFS)}", status=1)
    found = error.with_limit(str(tmp_path))
    assert found.message == f"the pod cannot be started: hosts: {NO_SPACE}"
    assert found.data == {"status": 1, "errno": errno.ENOSPC, "path": str(tmp_path)}
    other = StagerError("it ended")
    assert other.with_limit(str(tmp_path)) is other
