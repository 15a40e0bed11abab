"""The program that the check runs inside apps: ``probe NAME [serve | exit CODE | kill SIGNAL]``.

It reports its surroundings in one line of JSON over an abstract socket of the pod's network namespace; with
``serve`` it then carries out commands until the socket is closed. It imports only the interpreter's own modules.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ADDRESS = "\0kurma-stager-check"
#: Seconds to connect to the check, which listens before the stager is started.
PATIENCE = 10.0
#: Exit status if the check does not listen.
ALONE = 99


def quoted(text: str) -> str:
    out = []
    for letter in text:
        code = ord(letter)
        if letter in '"\\' or not 32 <= code < 127:
            high = code - 0x10000
            halves = (code,) if high < 0 else (0xD800 + (high >> 10), 0xDC00 + high % 1024)
            out.append("".join([f"\\u{half:04x}" for half in halves]))
        else:
            out.append(letter)
    return '"' + "".join(out) + '"'


def dumps(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join([quoted(key) + ":" + dumps(one) for key, one in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([dumps(one) for one in value]) + "]"
    return str(value)


def attempt(function: "Callable[..., Any]", *args: object) -> "Any":
    """Calls the function and returns its result, or ``{"error": REASON}``."""
    try:
        return function(*args)
    except OSError as error:
        return {"error": error.strerror}


def read(path: str) -> str:
    with open(path, errors="surrogateescape") as file:
        return file.read(1 << 16)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def descriptors(own: int) -> list[int]:
    """Returns the numbers of the open descriptors, without the probe's own."""
    found = attempt(os.listdir, "/proc/self/fd")
    if isinstance(found, dict):
        found = [str(number) for number in range(256)]
    return sorted(number for number in map(int, found) if number != own and is_open(number))


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def facts(own: int) -> dict[str, object]:
    return {
        "name": sys.argv[1],
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": sorted(os.getgroups()),
        "cwd": attempt(os.getcwd),
        "pid": os.getpid(),
        "hostname": os.uname().nodename,
        "descriptors": descriptors(own),
        "terminals": [number for number in (0, 1, 2) if os.isatty(number)],
    }


def roots() -> dict[str, list[str]]:
    """Returns, by PID, the names in each root below ``/proc`` that can be listed."""
    found = {}
    for name in os.listdir("/proc"):
        listed = attempt(os.listdir, f"/proc/{name}/root") if name.isdigit() else {}
        if isinstance(listed, list):
            found[name] = sorted(listed)[:64]
    return found


def daemon() -> None:
    """Starts a process in a session of its own, which outlives this one and ignores SIGHUP, SIGINT and SIGTERM."""
    if os.fork() == 0:
        os.setsid()
        for number in (1, 2, 15):
            _signal.signal(number, _signal.SIG_IGN)
        while True:
            time.sleep(1000)


class Probe:
    def __init__(self) -> None:
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.socket.connect(ADDRESS)
                return
            except OSError:
                if time.monotonic() > until:
                    os._exit(ALONE)
                time.sleep(0.02)

    def tell(self, value: object) -> None:
        # One call, so that the line of a signal handler cannot interrupt another line.
        self.socket.sendall(dumps(value).encode("ascii") + b"\n")

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                os._exit(0)
            data += more
        return data

    def serve(self) -> None:
        while True:
            asked = marshal.loads(self.take(int.from_bytes(self.take(4), "little")))  # noqa: S302 - the check's own words
            self.tell({"answer": attempt(getattr(self, "do_" + asked[0]), *asked[1:])})

    def do_exit(self, code: int) -> None:
        os._exit(code)

    def do_kill(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_catch(self, number: int, code: int | None) -> None:
        """Reports the signal when it arrives, and exits with that code; None: goes on."""

        def came(number: int, _: object) -> None:
            self.tell({"signal": number})
            if code is not None:
                os._exit(code)

        _signal.signal(number, came)

    def do_write(self, fd: int, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(fd, data) :]

    def do_read(self, fd: int) -> str:
        return os.read(fd, 4096).decode(errors="replace")

    def do_file(self, path: str) -> str:
        return read(path)

    def do_make(self, path: str, text: str) -> None:
        write(path, text)

    def do_stat(self, path: str) -> list[int]:
        status = os.stat(path)
        return [status.st_mode, status.st_uid, status.st_gid]

    def do_list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def do_roots(self) -> dict[str, list[str]]:
        return roots()

    def do_window(self) -> list[int]:
        size = os.get_terminal_size(0)
        return [size.columns, size.lines]

    def do_daemon(self) -> None:
        daemon()


def main() -> None:
    probe = Probe()
    probe.tell(facts(probe.socket.fileno()))
    action = sys.argv[2] if len(sys.argv) > 2 else "exit"
    if action == "serve":
        probe.serve()
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    if action == "kill":
        os.kill(os.getpid(), number)
    os._exit(number)


if __name__ == "__main__":
    main()
