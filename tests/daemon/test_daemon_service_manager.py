"""What a service manager gives to a program: taken over, and told (sd_notify(3), sd_listen_fds(3))."""

import os
import socket

import pytest

from kurma_core.daemon.process import service_manager


def test_all_of_it_is_taken_out():
    environment = {
        "NOTIFY_SOCKET": "/run/x",
        "LISTEN_FDS": "1",
        "LISTEN_PID": "1",
        "LISTEN_FDNAMES": "a",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "PATH": "/bin",
    }
    found = service_manager.take(environment)
    assert (found.notify, found.sockets, found.watchdog) == ("/run/x", (), None)  # the rest is another process's
    assert environment == {"PATH": "/bin"}
    found = service_manager.take(environment)
    assert (found.notify, found.sockets, found.watchdog) == (None, (), None)


@pytest.mark.parametrize(
    ("given", "found"),
    [("30000000", 30.0), ("1500000", 1.5), ("0", None), ("", None), ("-5", None), ("x", None), ("\u00b2", None)],
)
def test_the_watchdog(given, found):
    for pid in ("", str(os.getpid())):
        assert service_manager.take({"WATCHDOG_USEC": given, "WATCHDOG_PID": pid}).watchdog == found


@pytest.mark.parametrize("count", ["2", "100000", "9" * 5000])
def test_sockets_of_ours_are_not_inherited(monkeypatch, count):
    first, second = os.pipe()
    monkeypatch.setattr(service_manager, "_FIRST", first)
    for pid in (str(os.getpid() + 1), str(os.getpid())):
        for fd in (first, second):
            os.set_inheritable(fd, True)
        sockets = service_manager.take({"LISTEN_FDS": count, "LISTEN_PID": pid}).sockets
        ours = pid == str(os.getpid())
        assert (first in sockets) is ours
        assert os.get_inheritable(first) is not ours
    assert not (os.get_inheritable(second) and second - first == 1)
    os.close(first)
    os.close(second)


@pytest.mark.parametrize("count", ["", "-1", "x", "\u00b2"])
def test_a_count_that_is_none(count):
    assert service_manager.take({"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid())}).sockets == ()


def test_telling(tmp_path):
    for address in (str(tmp_path / "socket"), f"@kurma-{os.getpid()}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address.replace("@", "\0", 1))
            service_manager.tell(address, "READY=1")
            assert manager.recv(100) == b"READY=1"
    for nobody in (str(tmp_path / "none"), "@kurma-none", "x" * 200, ""):
        service_manager.tell(nobody, "READY=1")
