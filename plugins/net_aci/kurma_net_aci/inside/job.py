"""What is to be run, and what became of it: the two things that Kurma and the program tell each other."""

from __future__ import annotations

#: Descriptors of the program: the script's input, the report, and locks that it holds while it lives.
STDIN, REPORT, LOCKS = 0, 1, (3, 4)
#: How a call may end. The number beside it: exit status, signal, or nothing.
EXITED, KILLED, TIMEOUT, STOPPED, NOT_EXECUTED, NO_ROOT = (
    "exited",
    "killed",
    "timeout",
    "stopped",
    "not-executed",
    "no-root",
)


class Job:
    """:param rootfs: the network's root. :param timeout: seconds.
    :param keep: what the script leaves running stays, if it succeeds.
    :param environment: the script's, whole. :param command: the script's path in its root, and its arguments.
    """

    __slots__ = ("command", "environment", "keep", "rootfs", "timeout")

    def __init__(
        self, rootfs: str, timeout: float, keep: bool, environment: dict[str, str], command: list[str]
    ) -> None:
        self.rootfs = rootfs
        self.timeout = timeout
        self.keep = keep
        self.environment = environment
        self.command = command

    def words(self) -> list[str]:
        """As arguments of a program."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return [
            self.rootfs,
            repr(self.timeout),
            "keep" if self.keep else "end",
            str(len(variables)),
            *variables,
            *self.command,
        ]

    @classmethod
    def of_words(cls, words: list[str]) -> Job:
        """The other way."""
        rootfs, timeout, keep, count = words[:4]
        first = 4 + int(count)
        environment = {}
        for variable in words[4:first]:
            name, _, value = variable.partition("=")
            environment[name] = value
        return cls(rootfs, float(timeout), keep == "keep", environment, words[first:])


class Report:
    """What became of a call.

    :param how: one of the words above. :param number: exit status, or signal.
    :param stdout: its beginning. :param stderr: its end; where nothing could be run: why.
    """

    __slots__ = ("how", "number", "stderr", "stdout")

    def __init__(self, how: str, number: int = 0, stdout: bytes = b"", stderr: bytes = b"") -> None:
        self.how = how
        self.number = number
        self.stdout = stdout
        self.stderr = stderr

    @property
    def succeeded(self) -> bool:
        return self.how == EXITED and self.number == 0

    def to_bytes(self) -> bytes:
        return f"{self.how} {self.number} {len(self.stdout)}\n".encode() + self.stdout + self.stderr

    @classmethod
    def of_bytes(cls, data: bytes) -> Report | None:
        """None: it is none; the program was ended before it could write one."""
        head, line, rest = data.partition(b"\n")
        words = head.decode(errors="replace").split(" ")
        if not line or len(words) != 3:
            return None
        length = int(words[2])
        return cls(words[0], int(words[1]), rest[:length], rest[length:])
