"""The lock of a project: of two commands that change its pods at once, the second waits. Commands of other plugins
may lock other names, too."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from kurma_core import cancellation
from kurma_core.linux.files import lock_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kurma_core.api.operations import Api


@contextmanager
def locked(client: Api, project: str, note: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of a project. The file is in the state directory, so that only commands of root lock: another
    user can reach kurmad alone.

    :param note: called with one line before it waits for another command.
    """
    directory = client.info().state_directory
    path = f"{directory}/up-{hashlib.sha256(project.encode()).hexdigest()[:32]}.lock"
    if not os.access(directory, os.W_OK | os.X_OK):
        yield
        return
    try:
        held = lock_file(path, wait=False)
    except BlockingIOError:
        note(f"another command for {project} runs: waiting until it has ended")
        held = lock_file(path, flock=cancellation.lock)
    try:
        yield
    finally:
        # Before the lock is released: a command that waits makes a new file.
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(held)


@contextmanager
def all_locked(client: Api, projects: Iterable[str], note: Callable[[str], None]) -> Iterator[None]:
    """Holds several locks. All commands take them in one order, so that none waits for ever."""
    with ExitStack() as stack:
        for project in sorted(set(projects)):
            stack.enter_context(locked(client, project, note))
        yield
