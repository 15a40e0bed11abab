"""Work inside another network namespace, from a process that goes on in its own.

``setns(2)`` moves one thread. So a thread is started, moved, and let end there: nothing has to find its way home,
an exception included, and no process is forked (which a process with threads must not do).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


def in_network_namespace(path: str, function: Callable[[], T]) -> T:
    """What ``function`` returns, or raises, when it runs inside the network namespace pinned at ``path``.

    Needs CAP_SYS_ADMIN, over the namespace's owner too. Sockets that ``function`` opens stay in that namespace.

    :raises OSError: the namespace cannot be entered; ``function`` was not called.
    """
    import threading

    from kurma_core.linux.namespaces import enter_netns

    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            enter_netns(path)
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, name="netns", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
