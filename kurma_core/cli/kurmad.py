"""``kurmad``: ``kurma daemon`` under a name of its own, which takes the options of both in any order."""

from __future__ import annotations

import os

from kurma_core.cli.declare import GLOBAL_OPTIONS
from kurma_core.client.remote.starting import READY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> int:
    """The program; its exit code."""
    ready = os.environ.get(READY, "")
    if ready.isdecimal():
        # Whatever else who has started us has left open, in ignorance.
        os.closerange(int(ready) + 1, os.sysconf("SC_OPEN_MAX"))
        # Nobody's child, and no leader of its session, so that no terminal becomes its own.
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            return _told(error)
    from kurma_core.cli import main as kurma

    return kurma.main(words=None, program=sorted_words)


def _told(error: OSError) -> int:
    """Tells the command that has started us why there is no daemon; the exit code."""
    from kurma_core.daemon.process.lifecycle import reporting_readiness

    try:
        with reporting_readiness(os.environ):
            raise error
    except OSError:
        return 125


def sorted_words(words: Sequence[str]) -> list[str]:
    """The same command line as ``kurma`` has it."""
    flags = {flag: option for option in GLOBAL_OPTIONS for flag in option.flags}
    front, rest = [], []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        option = flags.get(word.partition("=")[0])
        if option is None:
            rest.append(word)
            continue
        front.append(word)
        if not option.is_flag and "=" not in word:
            if at == len(words):
                return front  # what it lacks is told, and not that there is no command
            front.append(words[at])
            at += 1
    return [*front, "daemon", *rest]
