"""What a daemon says to the command that has started it (:mod:`kurma_core.client.starting`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress

from kurma_core.client.starting import READY
from kurma_core.errors import KurmaError


@contextmanager
def reporting_readiness(environment: MutableMapping[str, str]) -> Iterator[Callable[[], None]]:
    """For a ``with`` statement around the daemon's whole life. Yields what is to be called once it is ready.

    What is raised before is told instead. If nobody has started us so, nobody is told anything.
    """
    text = environment.pop(READY, "")
    if not text.isdecimal():
        yield lambda: None
        return
    fd = int(text)
    left = [fd]
    os.set_inheritable(fd, False)

    def tell(message: object) -> None:
        if left:
            # Who asked may have gone: we are ready all the same.
            with suppress(OSError):
                os.write(fd, json.dumps(message).encode())
            os.close(left.pop())

    try:
        yield lambda: tell({"ready": os.getpid()})
    except Exception as error:
        from kurma_core.daemon.failures import error_json, internal

        tell(error_json(error if isinstance(error, KurmaError) else internal(error)))
        raise
    finally:
        if left:
            os.close(left.pop())


__all__ = ["reporting_readiness"]
