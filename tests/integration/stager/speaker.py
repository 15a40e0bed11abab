"""An app of Kurma's own interpreter that does what it is told on its command line, word by word: for what no shell
can, as to listen on a descriptor or to write to a socket."""

import _socket
import os
import select
import sys
import time

#: What was handed over; a socket that nobody holds any more is closed.
SOCKETS = []


def accept(socket):
    fd, _ = socket._accept()
    return _socket.socket(fileno=fd)


def listening():
    if not SOCKETS:
        SOCKETS.extend(_socket.socket(fileno=fd) for fd in range(3, 3 + int(os.environ["LISTEN_FDS"])))
    return SOCKETS


def tell(text):
    socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    socket.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def do(word, argument):
    if word == "environment":
        for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET"):
            say(name, os.environ.get(name))
        say("pid", os.getpid())
    elif word == "descriptors":
        # The one that reads the directory is among them, and is closed by the time that it is looked at.
        names = sorted(int(name) for name in os.listdir("/proc/self/fd"))
        say("open", [fd for fd in names if os.path.exists(f"/proc/self/fd/{fd}") or fd < 3])
        for socket in listening():
            blocking = os.get_blocking(socket.fileno())
            say(socket.fileno(), socket.type == _socket.SOCK_STREAM, socket.getsockname()[:2], blocking)
    elif word == "serve":  # so many connections, each told which execution answers
        for _ in range(int(argument)):
            with_one = accept(listening()[0])
            with_one.sendall(f"served by {os.getpid()}\n".encode())
            with_one.close()
    elif word == "echo":  # one datagram
        socket = listening()[int(argument)]
        data, whom = socket.recvfrom(100)
        socket.sendto(data.upper(), whom)
    elif word == "deafen":
        listening()[0].shutdown(_socket.SHUT_RDWR)
    elif word == "tell":
        tell(argument.replace(";", "\n"))
    elif word == "flood":
        for number in range(int(argument)):
            tell(f"STATUS=number {number}")
    elif word == "await":
        while not os.path.exists(argument):
            time.sleep(0.02)
    elif word == "say":
        say(argument)
    elif word == "reach":  # as somebody that may look into another process would
        try:
            os.stat(argument)
            say("reached", argument)
        except OSError as error:
            say("not reached", argument, error.strerror)
    elif word == "sleep":
        select.poll().poll(float(argument) * 1000)
    else:
        raise ValueError(word)


for each in sys.argv[1:]:
    do(*each.partition("=")[::2])
