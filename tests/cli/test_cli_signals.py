"""Signals while a command is at work, and before it is (cli.md, exit codes)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KURMA = (sys.executable, "-c", "import sys; from kurma_core.cli.program import main; sys.exit(main())")
_AT_ONCE = """
import os, signal, sys
class Sends:
    def __init__(self, when):
        self.when = when

    def find_spec(self, name, *_):
        if name == self.when:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Sends(sys.argv.pop(1)))
from kurma_core.cli.program import main
sys.exit(main())
"""


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(40):
        (root / str(number)).write_bytes(os.urandom(4 << 20))
    return root


def writes_to(pid: int, place: Path) -> bool:
    """Whether the process has a file open there, which may have no name yet."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return any(path.startswith(f"{place}/") for path in found)


def test_what_tests_start_hears_signals() -> None:
    """However the tests themselves were started: see the checkout's ``conftest.py``."""
    ask = "import signal; print(*(signal.getsignal(n) == signal.SIG_IGN for n in (1, 2, 3, 15)))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "False False False False\n"


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.full) for one in (signal.SIGTERM, signal.SIGHUP))],
)
def test_what_was_being_written_is_taken_away(tmp_path: Path, rootfs: Path, number: signal.Signals) -> None:
    place = tmp_path / "place"
    place.mkdir()
    words = ["image", "build", "--from-rootfs", str(rootfs), "--name", "a.b/c", "--compress", "xz"]
    command = [*KURMA, "--dir", str(tmp_path / "state"), *words, "-o", str(place / "c.aci")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 30
        while not writes_to(process.pid, place):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert (out, list(place.iterdir())) == ("", [])
    assert err == ("" if number == signal.SIGINT else f"kurma: interrupted by {number.name}\n")


@pytest.mark.parametrize("module", ["kurma_core.cli.command_line", "kurma_core.errors"])
def test_ctrl_c_before_anything_is_loaded(module: str) -> None:
    command = [sys.executable, "-c", _AT_ONCE, module, "image", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


_AGAIN = """
import os, signal, sys
class Sends:
    def find_spec(self, name, *_):
        if name in sys.argv[2].split(","):
            os.kill(os.getpid(), int(sys.argv[1]))
sys.meta_path.insert(0, Sends())
from kurma_core.cli.main import main
code = main(program=lambda words: words[2:])
os.kill(os.getpid(), int(sys.argv[1]))
sys.exit(code)
"""
_REPORT = "kurma_core.cli.output"


@pytest.mark.parametrize(
    ("number", "when", "ended"),
    [
        (signal.SIGTERM, f"kurma_core.client,{_REPORT}", (143, "kurma: interrupted by SIGTERM\n")),
        (signal.SIGHUP, f"kurma_core.client,{_REPORT}", (129, "kurma: interrupted by SIGHUP\n")),
        (signal.SIGINT, f"kurma_core.client,{_REPORT}", (130, "")),
        (signal.SIGTERM, _REPORT, (2, "kurma: --dir: the path is empty")),
    ],
)
def test_a_signal_while_the_end_is_reported_does_nothing(
    number: signal.Signals, when: str, ended: tuple[int, str]
) -> None:
    """19.2: timeout(1) signals its child, then the child's group."""
    words = ["--dir", "", "rm", "a"] if when == _REPORT else ["image", "list"]
    command = [sys.executable, "-c", _AGAIN, str(int(number)), when, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    code, err = ended
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(err)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


_READER_GONE = """
import os, signal, sys
from kurma_core.cli.main import main
class Client:
    remote = True
    def events(self, *_, **__):
        return iter([])
    def close(self):
        pass
def comes(frame, event, _):
    if event == "call" and frame.f_code.co_qualname == "WhileRead.__exit__":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGURG)
sys.setprofile(comes)
sys.exit(main(["events"], connect=lambda _: Client()))
"""


def test_a_reader_that_goes_away_at_the_end() -> None:
    """19.2: while the command stops watching its reader."""
    done = subprocess.run(
        [sys.executable, "-c", _READER_GONE], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


_IN_A_DESTRUCTOR = """
import os, sys, time
from kurma_core.signals import raise_signals
raise_signals()
class Last:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(0.01)
try:
    Last()
    time.sleep(10)
except BaseException as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (signal.SIGINT, "KeyboardInterrupt "),
        (signal.SIGTERM, "Interrupted interrupted by SIGTERM"),
        (signal.SIGHUP, "Interrupted interrupted by SIGHUP"),
    ],
)
def test_a_signal_in_a_destructor_is_not_lost(number: signal.Signals, raised: str) -> None:
    """Python drops what is raised there."""
    command = [sys.executable, "-c", _IN_A_DESTRUCTOR, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == (f"{raised}\n", "")


_IN_AN_IMPORT = """
import importlib._bootstrap as machinery, os, sys, threading, time
from kurma_core.signals import raise_signals
from kurma_core.signals import Signals
raise_signals()
class Imp:
    "What Python's imports take their lock by; the first time a signal comes at once afterwards."
    came = False
    def __getattr__(self, name):
        return getattr(real, name)
# A frame of the import system, as where the signal comes by chance.
exec(compile('''
def acquire_lock():
    real.acquire_lock()
    if not Imp.came:
        Imp.came = True
        os.kill(os.getpid(), int(sys.argv[1]))
''', "<frozen importlib._bootstrap>", "exec"))
real, imp = machinery._imp, Imp()
imp.acquire_lock = acquire_lock
def run():
    machinery._imp = imp
    try:
        import colorsys
        time.sleep(10)
    finally:
        machinery._imp = real
try:
    if sys.argv[2] == "command":
        run()
    else:
        with Signals():
            run()
except BaseException as error:
    print(type(error).__name__, error)
other = threading.Thread(target=lambda: __import__("cmd"), daemon=True)
other.start()
other.join(10)
print("held up" if other.is_alive() else "free", Imp.came)
"""


@pytest.mark.parametrize("who", ["command", "pod"])
@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, "KeyboardInterrupt "), (signal.SIGTERM, "Interrupted interrupted by SIGTERM")],
)
def test_a_signal_in_an_import_holds_nobody_up(number: signal.Signals, raised: str, who: str) -> None:
    """What is raised in the steps of an import that hold Python's own lock leaves it held, for all threads."""
    command = [sys.executable, "-c", _IN_AN_IMPORT, str(int(number)), who]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    if who == "pod":
        raised = f"Interrupted interrupted by {number.name}"
    assert (done.stdout, done.stderr) == (f"{raised}\nfree True\n", "")


_NOT_INTERRUPTED = """
import os, select, signal, threading, time
from pathlib import Path
from kurma_core.signals import Signals
def send():
    while "poll" not in Path(f"/proc/self/task/{os.getpid()}/wchan").read_text():
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
with Signals() as signals:
    signals.settle()
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    threading.Thread(target=send).start()
    print(len(poll.poll(20_000)), list(signals.numbers()), list(signals.numbers()))
"""


def test_a_signal_that_does_not_interrupt_a_poll_ends_it() -> None:
    """As one that comes just before: here another thread gets it, and Python runs handlers in the main one."""
    command = [sys.executable, "-c", _NOT_INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1 [15] []\n"


def test_what_is_to_be_ignored_is_ignored(tmp_path: Path) -> None:
    """As with nohup."""
    ask = "import signal, sys; from kurma_core.signals import raise_signals; raise_signals(); "
    ask += "print(*(signal.getsignal(n) == signal.SIG_IGN for n in (1, 2, 15)))"
    ignore = f"trap '' HUP INT TERM; exec {sys.executable} -c \"$0\""
    done = subprocess.run(["/bin/sh", "-c", ignore, ask], capture_output=True, text=True, check=True)
    assert done.stdout == "True True True\n"
