"""Asks a metadata service from inside a pod's network namespace: ``asker.py NAMESPACE URL COUNT INTERVAL LANES``.

COUNT requests over LANES connections at a time, each for one request, INTERVAL seconds apart. Prints the
longest time of an answer in milliseconds, by how much the machine let it oversleep at worst, and how many answers
were not 200.
"""

import os
import select
import socket
import sys
import time

from kurma_core.linux.namespaces import enter_netns


def main():
    namespace, url, count, interval, lanes = sys.argv[1:]
    enter_netns(namespace)
    host, _, path = url.removeprefix("http://").partition("/")
    address = (host.split(":")[0], int(host.split(":")[1]))
    request = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    left, times, late, bad = int(count), [], [0.0], 0
    poll, open_ = select.poll(), {}
    while left or open_:
        while left and len(open_) < int(lanes):
            left -= 1
            started = time.perf_counter()
            sock = socket.create_connection(address, 30)
            sock.sendall(request)
            poll.register(sock, select.POLLIN)
            open_[sock.fileno()] = sock, started
        for fd, _ in poll.poll():
            sock, started = open_[fd]
            data = sock.recv(65536)
            if data:
                times.append((time.perf_counter() - started) * 1e3)
                bad += not data.startswith(b"HTTP/1.1 200")
            poll.unregister(sock)
            sock.close()
            del open_[fd]
            asleep = time.perf_counter()
            time.sleep(float(interval))
            late.append((time.perf_counter() - asleep - float(interval)) * 1e3)
    print(f"{max(times):.2f} {max(late):.2f} {bad + int(count) - len(times)}")


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
