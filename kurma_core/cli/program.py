"""Entry points of the programs ``kurma`` and ``kurmad``.

Until all modules are loaded, SIGINT ends the process at once and without a message, since there is nothing to undo
yet.
"""

import _signal  # type: ignore[import-not-found]
import gc
import os
import sys

#: Objects that a command makes before the interpreter searches them for garbage. Starting a pod makes some 36,000,
#: and nearly all of them stay: by default they would be searched 50 times, for a twentieth of the command's time.
_OBJECTS = 100_000


def main() -> int:
    """See :func:`kurma_core.cli.main.main`, which takes the signals over."""
    _end_in_silence()
    if sys.argv[1:2] == ["__complete"]:
        from kurma_core.cli.completion import main as complete

        # The interpreter's ordinary end would take a tenth of the time.
        os._exit(complete(sys.argv[2:]))
    gc.set_threshold(_OBJECTS)
    from kurma_core.cli.main import main as run

    code = run()
    # At exit the interpreter would search all that was imported for garbage: 4 ms for a listing, 7 for help.
    gc.freeze()
    return code


def kurmad() -> int:
    """See :mod:`kurma_core.cli.commands.daemon`."""
    _end_in_silence()
    from kurma_core.cli.commands.daemon import main as run

    return run()


def _end_in_silence() -> None:
    if _signal.getsignal(_signal.SIGINT) == _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
