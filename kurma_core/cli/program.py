"""Where the program begins. Until all that it needs is loaded, a signal ends it at once, and in silence: there is
nothing to undo yet, and nobody who could tell it well."""

import _signal  # type: ignore[import-not-found]


def main() -> int:
    """See :func:`kurma_core.cli.main.main`, which takes the signals over."""
    _end_in_silence()
    from kurma_core.cli.main import main as run

    code = run()
    import gc

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
