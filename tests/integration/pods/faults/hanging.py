"""A file system that never answers: whoever opens a file in it hangs in the kernel, where no signal reaches it.

A FUSE server in a process of its own: it tells what its root directory is, takes every other request, and says
nothing. With its end, the kernel lets go of all that wait. Run as a program: ``hanging.py PATH``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
import subprocess
import sys

_INIT, _GETATTR, _FORGET, _STATFS = 26, 3, 2, 17
_HEADER = struct.Struct("=IIQQIIII")
_ROOT = 1
_NEVER = 1 << 30
_BUFFER = 1 << 16
_DETACHED = 2
_PR_SET_PDEATHSIG = 1


class HangingFilesystem:
    """Mounted at ``path``, an empty directory, until :meth:`close`."""

    def __init__(self, path):
        self.path = str(path)
        self._server = subprocess.Popen(
            [sys.executable, "-IS", __file__, self.path], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._server.stdout.readline() == b"mounted\n"

    def wait_hung(self):
        """Until somebody hangs in it."""
        assert self._server.stdout.readline() == b"hung\n"

    def close(self):
        """What hung in it gets an error, and goes on to die. May be repeated."""
        if self._server.poll() is None:
            ctypes.CDLL(None).umount2(self.path.encode(), _DETACHED)
            self._server.kill()
        self._server.wait()
        self._server.stdout.close()


def serve(path):
    """Until this process is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"hanging", path.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    os.write(1, b"mounted\n")
    hung = False
    while True:
        request = os.read(fd, _BUFFER)
        _, operation, unique, node, *_ = _HEADER.unpack_from(request)
        if operation == _INIT:
            _, minor, ahead = struct.unpack_from("=III", request, _HEADER.size)
            answer = struct.pack("=IIIIHHIIHHII24x", 7, min(minor, 31), ahead, 0, 0, 0, 4096, 0, 0, 0, 0, 0)
        elif operation == _GETATTR and node == _ROOT:
            times = (0,) * 3
            answer = struct.pack("=QII6Q", _NEVER, 0, 0, _ROOT, 0, 0, *times)
            answer += struct.pack("=10I", *times, stat.S_IFDIR | 0o755, 2, 0, 0, 0, 4096, 0)
        elif operation == _STATFS:
            answer = bytes(80)
        elif operation == _FORGET:
            continue
        else:
            if not hung:
                os.write(1, b"hung\n")
            hung = True
            continue  # and nothing ever comes
        os.write(fd, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)


if __name__ == "__main__":
    serve(sys.argv[1])
