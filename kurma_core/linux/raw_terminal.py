"""A person's terminal in raw mode, for as long as a terminal inside a pod gets what is typed there.

The terminal is put back as it was at the end; also when this process is killed: a small program waits for that.
"""

from __future__ import annotations

import os

from kurma_core.linux import terminal

#: Restores the terminal on descriptor 0, by stty(1), when descriptor 3 ends without a word.
_GUARD = 'read -r _ <&3 || exec stty "$0"'


class RawTerminal:
    """For a ``with`` statement: raw mode inside. In the background, this process stops until it is in front.

    :param fd: of the terminal; stays the caller's.
    :raises OSError: it is no terminal.
    """

    __slots__ = ("_fd", "_guard", "_held", "_pipe")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held = terminal.Held(fd)
        self._guard = self._pipe = -1

    def __enter__(self) -> RawTerminal:
        self._held.wait_front()
        self._start_guard()
        try:
            self._held.raw()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._held.restore()
        if self._pipe >= 0:
            try:  # noqa: SIM105 - contextlib is not light
                os.write(self._pipe, b"\n")
            except OSError:
                pass  # somebody has killed it
            os.close(self._pipe)
            self._pipe = -1
        if self._guard > 0:
            try:  # noqa: SIM105
                os.waitpid(self._guard, 0)
            except ChildProcessError:
                pass  # the caller ignores SIGCHLD
            self._guard = -1

    def again(self) -> None:
        """Raw once more, after a shell had the terminal while this process was stopped.

        :raises OSError: it has gone.
        """
        self._held.raw()

    def size(self) -> tuple[int, int] | None:
        return terminal.get_size(self._fd)

    def _start_guard(self) -> None:
        """In a session of its own: neither a hang-up nor a signal to our process group ends it with us."""
        read, self._pipe = os.pipe2(os.O_CLOEXEC)
        actions = [
            # In this order: 0 may be a descriptor of another kind.
            (os.POSIX_SPAWN_DUP2, self._fd, 0),
            (os.POSIX_SPAWN_DUP2, read, 3),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_RDWR, 0),
        ]
        argv = ["/bin/sh", "-c", _GUARD, self._held.in_words()]
        try:
            self._guard = os.posix_spawn(
                argv[0],
                argv,
                {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=range(1, 32),
            )
        except OSError:
            os.close(self._pipe)
            self._pipe = -1  # a host without a shell: a killed command leaves its terminal raw there
        finally:
            os.close(read)
