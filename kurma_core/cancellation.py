"""Operations: their progress, and their cancellation by Ctrl-C, or, in a process with many operations, of one.

An operation is a :class:`Cancellation`. A thread works for it inside of :func:`governing`; code that waits gets it
from :func:`current`, so that it is not passed from call to call. An operation that starts threads passes itself to
them explicitly. ``cancel``, from any thread, ends all waits of the operation; begun work is undone as the
exception propagates, as after any other exception.

Long work reports its progress to the operation's caller by :class:`phase` and :func:`step`.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar, copy_context

from kurma_core.errors import Cancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Protocol, TypeVar

    T = TypeVar("T")

    class Report(Protocol):
        """As :class:`kurma_core.api.operations.Progress`."""

        def start(self, what: str, total: int | None, kind: str = "bytes") -> None: ...
        def advance(self, count: int) -> None: ...
        def finish(self) -> None: ...

    class HasFileno(Protocol):
        def fileno(self) -> int: ...


#: Seconds to wait for a call without support for cancellation, once its operation is cancelled.
GRACE = 0.3
#: Seconds between two tries to lock a file: another thread cannot interrupt flock(2).
_LOCK_POLL = 0.05
#: Seconds between two calls of ``meanwhile`` of :func:`abandoning`.
_MEANWHILE = 1.0


class Cancellation:
    """One operation, or a part of one. Safe to use from several threads.

    :param whole: the operation of which this is a part; None: it is a whole one.
    :ivar reporter: makes the report of progress to the operation's caller, or returns None if the caller reads
        none.
    :ivar report: that of the present :class:`phase`; None: there is none.
    """

    __slots__ = ("_wakers", "cancelled", "report", "reporter")

    def __init__(self, whole: Cancellation | None = None) -> None:
        self.cancelled = False
        self.reporter: Callable[[], Report | None] | None = None if whole is None else whole.reporter
        self.report: Report | None = None if whole is None else whole.report
        # Changed and copied by atomic operations, without a lock: a signal handler may run in between, and cancel.
        self._wakers: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        """Cancels it for good: its waits end, and raise :class:`Cancelled`."""
        self.cancelled = True
        for wake in self._wakers.copy().values():
            try:  # noqa: SIM105 - contextlib is heavy
                wake()
            except Exception:  # noqa: BLE001, S110 - the wait has just ended, or a plugin's function raised
                pass

    def check(self) -> None:
        """Checks for cancellation; cheap enough for loops. :raises Cancelled: it was cancelled."""
        if self.cancelled:
            raise Cancelled

    def waking(self, wake: Callable[[], object]) -> _Waking:
        """Makes a wait cancellable, by a ``with`` statement around it.

        :param wake: ends the wait. ``cancel`` calls it from another thread; it must not wait itself, and may be
            called after the wait has ended. :class:`Cancelled` is raised at the end of the block in any case.
        """
        return _Waking(self, wake)

    def part(self) -> _Part:
        """A part of the operation, for a ``with`` statement: it is cancelled with the whole, or alone, and at the
        latest at the end of the block, so that no thread continues to work for it."""
        return _Part(self)

    def pause(self, seconds: float) -> None:
        """Waits ``seconds``. :raises Cancelled: meanwhile, or before."""
        gate = allocate_lock()
        gate.acquire()
        with self.waking(gate.release):
            gate.acquire(timeout=max(seconds, 0.0))


class _Waking:
    __slots__ = ("_operation", "_wake")

    def __init__(self, operation: Cancellation, wake: Callable[[], object]) -> None:
        self._operation = operation
        self._wake = wake

    def __enter__(self) -> None:
        # In this order: a concurrent ``cancel`` either finds the waker, or has set ``cancelled`` before the check.
        self._operation._wakers[self] = self._wake
        if self._operation.cancelled:
            self._forget()
            raise Cancelled

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._forget()
        if self._operation.cancelled and (error is None or isinstance(error, Exception)):
            raise Cancelled from error

    def _forget(self) -> None:
        self._operation._wakers.pop(self, None)


class _Part:
    __slots__ = ("_part", "_waking")

    def __init__(self, whole: Cancellation) -> None:
        self._part = Cancellation(whole)
        self._waking = whole.waking(self._part.cancel)

    def __enter__(self) -> Cancellation:
        self._waking.__enter__()
        return self._part

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._part.cancel()
        self._waking.__exit__(kind, error, trace)


class governing:
    """Makes this thread work for the operation inside a ``with`` statement. The innermost statement counts."""

    __slots__ = ("_operation", "_token")

    def __init__(self, operation: Cancellation) -> None:
        self._operation = operation

    def __enter__(self) -> Cancellation:
        self._token = _CURRENT.set(self._operation)
        return self._operation

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


#: The operation outside of all :func:`governing`; it is never cancelled.
_NOBODYS = Cancellation()
_CURRENT: ContextVar[Cancellation] = ContextVar("kurma_operation", default=_NOBODYS)


def shielded() -> governing:
    """Protects undo steps from cancellation, by a ``with`` statement around them."""
    return governing(_NOBODYS)


def current() -> Cancellation:
    """Returns the operation that this thread works for."""
    return _CURRENT.get()


def check() -> None:
    """Checks for cancellation. :raises Cancelled: the operation that this thread works for was cancelled."""
    _CURRENT.get().check()


def pause(seconds: float) -> None:
    """Sleeps ``seconds``. :raises Cancelled: as :func:`check`."""
    _CURRENT.get().pause(seconds)


def lock(fd: int, how: int) -> None:
    """Locks a file by ``flock(2)``; waits for other processes and threads.

    :param fd: descriptor of the file. :param how: ``LOCK_EX`` or ``LOCK_SH``.
    :raises Cancelled: as :func:`check`. :raises OSError: the kernel refused.
    """
    from fcntl import LOCK_NB, flock

    while True:
        try:
            return flock(fd, how | LOCK_NB)
        except BlockingIOError:
            pause(_LOCK_POLL)


class phase:
    """A long step of the operation that this thread works for, as a ``with`` statement. :func:`step` moves its
    progress, which the operation's caller shows.

    :param what: for people: ``removing web``.
    :param total: number of what is counted; None: it is not known.
    :param kind: what is counted: ``files`` or ``bytes``.
    """

    __slots__ = ("_kind", "_operation", "_outer", "_total", "_what")

    def __init__(self, what: str, total: int | None = None, kind: str = "files") -> None:
        self._what = what
        self._total = total
        self._kind = kind

    def __enter__(self) -> None:
        operation = self._operation = current()
        self._outer = operation.report
        operation.report = operation.reporter() if operation.reporter is not None else None
        if operation.report is not None:
            operation.report.start(self._what, self._total, self._kind)

    def __exit__(self, *_: object) -> None:
        report, self._operation.report = self._operation.report, self._outer
        if report is not None:
            report.finish()


def step(count: int = 1) -> None:
    """Reports progress of the present :class:`phase`. Cheap; without a phase, does nothing.

    :param count: number of files and directories, or of bytes, since the last call.
    """
    report = _CURRENT.get().report
    if report is not None:
        report.advance(count)


class CancellationFd:
    """For a ``with`` statement: a descriptor that polls readable once this thread's operation is cancelled. The
    end of the block then raises :class:`Cancelled`."""

    def __init__(self) -> None:
        import _socket

        self._read, self._write = _socket.socketpair()
        # The callback must hold the socket, not ``self``: a reference cycle would stay until garbage collection.
        write = self._write
        self._operation = current()
        self._waking = self._operation.waking(lambda: write.send(b"."))

    def fileno(self) -> int:
        """The descriptor, for select and poll."""
        return self._read.fileno()

    @property
    def cancelled(self) -> bool:
        """Whether the operation was cancelled."""
        return self._operation.cancelled

    def __enter__(self) -> CancellationFd:
        try:
            self._waking.__enter__()
        except Cancelled:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._waking.__exit__(kind, error, trace)

    def _close(self) -> None:
        self._read.close()
        self._write.close()


def wait_readable(timeout: float | None, *those: HasFileno | None) -> None:
    """Waits until one of the descriptors polls readable, or ``timeout`` seconds have passed; a few weeks at
    most. To end the wait when the operation is cancelled, pass a :class:`CancellationFd`, too."""
    import select

    from kurma_core.linux.process import LONGEST_POLL

    poll = select.poll()
    for one in those:
        if one is not None:
            poll.register(one, select.POLLIN)
    poll.poll(None if timeout is None else min(max(0.0, timeout), LONGEST_POLL) * 1000)


def abandoning(
    call: Callable[[], T],
    dispose: Callable[[T], object] | None = None,
    grace: float = GRACE,
    meanwhile: Callable[[], object] | None = None,
) -> T:
    """Runs ``call`` in a thread of its own and returns or raises its outcome. Used for code that may wait long and
    does not support cancellation: a plugin's, or the C library's.

    :param dispose: gets the result if the call returns after it was abandoned.
    :param grace: seconds that the call has to end when the operation is cancelled; after that it is abandoned.
    :param meanwhile: called each second until the call ends; its exception abandons the call.
    :raises Cancelled: as :func:`check`.
    """
    operation = current()
    with operation.part() as part:
        running = _Running(call, dispose, part)
        try:
            with operation.waking(running.stir):
                running.wait(meanwhile)
        except BaseException:
            part.cancel()
            running.leave(grace)
            raise
        return running.result()  # type: ignore[return-value]


class _Running:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T], dispose: Callable[[T], object] | None, part: Cancellation) -> None:
        from threading import Thread

        self._call = call
        self._dispose = dispose
        self._stirred, self._over, self._deciding = allocate_lock(), allocate_lock(), allocate_lock()
        self._stirred.acquire()
        self._over.acquire()
        self._left = False
        self._ended = False
        self._value: object = None
        self._error: BaseException | None = None
        context = copy_context()
        context.run(_CURRENT.set, part)
        # A daemon thread: the interpreter does not wait for it at exit.
        Thread(target=context.run, args=(self._work,), name="kurma-call", daemon=True).start()

    def wait(self, meanwhile: Callable[[], object] | None) -> None:
        """Waits until the call has ended, or :meth:`stir` is called."""
        while not self._stirred.acquire(timeout=-1 if meanwhile is None else _MEANWHILE):
            if meanwhile is not None:
                meanwhile()

    def stir(self) -> None:
        try:  # noqa: SIM105 - contextlib is heavy
            self._stirred.release()
        except RuntimeError:
            pass  # the lock is released already

    def leave(self, grace: float) -> None:
        """Abandons the call, which has ``grace`` seconds to end."""
        self._over.acquire(timeout=grace)
        with self._deciding:
            self._left = True
            ended = self._ended
        if ended:
            self._throw_away()

    def result(self) -> object:
        if self._error is not None:
            raise self._error
        return self._value

    def _work(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error
        with self._deciding:
            self._ended = True
            left = self._left
        if left:
            self._throw_away()
        self._over.release()
        self.stir()

    def _throw_away(self) -> None:
        if self._error is None and self._dispose is not None:
            try:  # noqa: SIM105 - contextlib is heavy
                self._dispose(self._value)  # type: ignore[arg-type]
            except Exception:  # noqa: BLE001, S110 - the caller has gone on
                pass
