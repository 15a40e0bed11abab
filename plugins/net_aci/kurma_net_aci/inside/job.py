"""The messages between Kurma and the program: the script to run, and the report of its end."""

from __future__ import annotations

#: Descriptors of the program: the script's input, the report, and locks that it holds until its end.
STDIN, REPORT, LOCKS = 0, 1, (3, 4)
#: How a call may end: :attr:`Report.how`.
EXITED, KILLED, TIMEOUT, STOPPED, NOT_EXECUTED, NO_ROOT = (
    "exited",
    "killed",
    "timeout",
    "stopped",
    "not-executed",
    "no-root",
)


class Job:
    """A script to run.

    :param rootfs: the network's root. :param timeout: seconds.
    :param keep: processes that the script leaves running stay, if it succeeds.
    :param environment: the script's whole environment. :param command: its path in the root, and its arguments.
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
        """Encodes the job as arguments of a program."""
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
        """Decodes :meth:`words`."""
        rootfs, timeout, keep, count = words[:4]
        first = 4 + int(count)
        environment = {}
        for variable in words[4:first]:
            name, _, value = variable.partition("=")
            environment[name] = value
        return cls(rootfs, float(timeout), keep == "keep", environment, words[first:])


class Report:
    """The result of a call.

    :param how: one of the words above. :param number: exit status, or signal.
    :param stdout: the beginning of the output. :param stderr: the end of the output; if the script could not be
        executed, the reason.
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
        """Parses a report; None: it is incomplete, since the program was killed before it could write it."""
        head, line, rest = data.partition(b"\n")
        words = head.decode(errors="replace").split(" ")
        if not line or len(words) != 3:
            return None
        length = int(words[2])
        return cls(words[0], int(words[1]), rest[:length], rest[length:])
