"""Docker's credential helpers: ``docker-credential-NAME get``."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from kurma_core.errors import FetchUnauthorizedError

#: Seconds that a helper may take.
HELPER_TIMEOUT = 30.0


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
        answer = json.loads(out)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
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
    with process:
        try:
            out, err = process.communicate(server.encode(), timeout)
        except subprocess.TimeoutExpired:
            raise _failed(program, named_in, f"no answer in {timeout:.0f} seconds") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, " ".join((out + b" " + err).decode(errors="replace").split())


def _failed(program: str, named_in: str, what: str) -> FetchUnauthorizedError:
    return FetchUnauthorizedError(
        f"credential helper {program}: {what}", hint=f"it is named in {named_in}", path=named_in
    )
