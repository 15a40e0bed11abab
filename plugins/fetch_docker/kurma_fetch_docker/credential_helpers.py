"""Asks Docker's credential helpers for logins: ``docker-credential-NAME get``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time

from kurma_core.cancellation import current
from kurma_core.errors import FetchUnauthorizedError
from kurma_core.json_text import loads

#: Seconds that a helper may take.
HELPER_TIMEOUT = 30.0
#: Most bytes of its standard output, and of its standard error.
_LONGEST = 1 << 20


def ask_helper(name: str, server: str, named_in: str, timeout: float = HELPER_TIMEOUT) -> tuple[str, str] | None:
    """Asks a credential helper for a login.

    :param name: the helper's name in the file ``named_in``. :param server: the name to look up.
    :returns: user and secret; None: the helper has none.
    :raises FetchUnauthorizedError: the helper is missing, fails, hangs, or sends a malformed answer.
    """
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise FetchUnauthorizedError(f"{named_in}: credential helper {name!r}: not a name", path=named_in)
    program = f"docker-credential-{name}"
    status, out, text = _run(program, server, named_in, timeout)
    if status != 0:
        if "not found" in text.lower():
            return None
        raise _failed(program, named_in, f"failed: {text[:200] or f'exit status {status}'}")
    try:
        answer = loads(out)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError):
        raise _failed(program, named_in, "its answer is malformed") from None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise _failed(program, named_in, "its answer is malformed")
    return user, secret


def _run(program: str, server: str, named_in: str, timeout: float) -> tuple[int, bytes, str]:
    """Runs the helper. :returns: its exit status, its standard output, and all of its output on one line."""
    try:
        # A session of its own, so that the helper's own children can be killed with it.
        process = subprocess.Popen(
            [program, "get"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise _failed(program, named_in, "it is not installed") from None
    except OSError as error:
        raise _failed(program, named_in, f"it cannot be executed: {error.strerror}") from None
    try:
        end = time.monotonic() + timeout
        with current().waking(lambda: os.killpg(process.pid, signal.SIGKILL)):
            out, err = _said(process, server.encode(), end)
            _await(process, end)
    except TimeoutError:
        raise _failed(program, named_in, f"no answer in {timeout:.0f} seconds") from None
    except OverflowError:
        raise _failed(program, named_in, f"its answer is longer than {_LONGEST} bytes") from None
    finally:
        # Children may outlive the helper. The PID cannot be reused before the helper is waited for, which is done
        # below.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.__exit__(None, None, None)
    return process.returncode, out, " ".join((out + b" " + err).decode(errors="replace").split())


def _said(process: subprocess.Popen[bytes], question: bytes, end: float) -> tuple[bytes, bytes]:
    """Reads the helper's standard output and error until it closes them.

    :param end: deadline, by :func:`time.monotonic`. :raises TimeoutError: the deadline has passed.
    :raises OverflowError: the helper writes more than ``_LONGEST`` bytes.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(question)  # shorter than a pipe's buffer, so it does not block
    said = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    out, err = said
    waiting = select.poll()
    for fd in said:
        waiting.register(fd, select.POLLIN)
    left = 2
    while left:
        ready = waiting.poll(max(0.0, end - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError
        for fd, _ in ready:
            piece = os.read(fd, 1 << 16)
            said[fd] += piece
            if not piece:
                waiting.unregister(fd)
                left -= 1
            if len(said[fd]) > _LONGEST:
                raise OverflowError
    return said[out], said[err]


def _await(process: subprocess.Popen[bytes], end: float) -> None:
    """Waits for the helper's end without reaping it. :raises TimeoutError: it has not ended by the deadline."""
    fd = os.pidfd_open(process.pid)
    try:
        waiting = select.poll()
        waiting.register(fd, select.POLLIN)
        if not waiting.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError
    finally:
        os.close(fd)


def _failed(program: str, named_in: str, what: str) -> FetchUnauthorizedError:
    return FetchUnauthorizedError(
        f"credential helper {program}: {what}", hint=f"it is named in {named_in}", path=named_in
    )
