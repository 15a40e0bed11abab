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
#: Bytes of its answer, and of what it says beside it.
_LONGEST = 1 << 20


def ask_helper(name: str, server: str, named_in: str, timeout: float = HELPER_TIMEOUT) -> tuple[str, str] | None:
    """:param name: as the file ``named_in`` has it. :param server: as the helper is to look it up.
    :returns: user and secret; None: it knows of none.
    :raises FetchUnauthorizedError: it is not there, fails, hangs, or answers nonsense.
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
    """:returns: its exit status, its output, and what it said, on one line."""
    try:
        # A session of its own: what it started goes with it.
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
        # Also where it has ended itself, and what it started has not. Until it is waited for, which comes after,
        # nobody else has its number.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.__exit__(None, None, None)
    return process.returncode, out, " ".join((out + b" " + err).decode(errors="replace").split())


def _said(process: subprocess.Popen[bytes], question: bytes, end: float) -> tuple[bytes, bytes]:
    """What it writes to its outputs until it closes them.

    :param end: as :func:`time.monotonic` counts. :raises TimeoutError: it is past.
    :raises OverflowError: it writes more than anybody needs.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(question)  # less than a pipe holds
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
    """Its end, without taking notice of it. :raises TimeoutError: it does not come."""
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
