"""The resolvers that images have, in one image; and a name server outside."""

import os
import shutil
import socket
import struct
import subprocess
import threading

from tests.kit.images import archive, busybox_root, shell

_LOOKUP = r"""
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
int main(int count, char **words) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char text[INET6_ADDRSTRLEN];
    int error = getaddrinfo(words[count - 1], 0, &hints, &found);
    if (error) { fprintf(stderr, "%s\n", gai_strerror(error)); return 2; }
    for (; found; found = found->ai_next) {
        void *at = found->ai_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)found->ai_addr)->sin6_addr
                                                : (void *)&((struct sockaddr_in *)found->ai_addr)->sin_addr;
        printf("%s\n", inet_ntop(found->ai_family, at, text, sizeof text));
    }
}
"""
#: By resolver: a command of :func:`resolver_archive`'s image that looks a name up, and prints addresses.
LOOKUPS = {
    "busybox": "ping -c 1 -W 1 {name} 2>&1 | sed -n 's/^PING .*(\\(.*\\)).*/\\1/p'",
    "glibc": "getent ahosts {name} | cut -d ' ' -f 1 | sort -u",
    "musl": "lookup {name}",
}


def resolver_archive(directory, files=None):
    """An image with busybox (glibc, static), getent (glibc, dynamic, with its libraries), and one of musl's."""
    root = busybox_root(f"{directory}/resolvers", files)
    for path in ("/usr/bin/getent", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"):
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        shutil.copy(path, root + path)
    source = f"{directory}/lookup.c"
    with open(source, "w") as file:
        file.write(_LOOKUP)
    subprocess.run(("musl-gcc", "-static", "-o", f"{root}/bin/lookup", source), check=True)
    return archive(root, f"{directory}/resolvers.aci", "example.com/resolvers", app=shell("true"))


class NameServer:
    """Answers A questions by UDP, until it is closed.

    :param place: where it listens, see :mod:`tests.integration.networking.world`.
    :attr:`asked`: names, as they were asked.
    """

    def __init__(self, place, address, names):
        self._names = names
        self.asked = []
        self._socket = place.inside(lambda: self._bound(address))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @staticmethod
    def _bound(address):
        found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        found.bind((address, 53))
        found.settimeout(0.2)
        return found

    def _serve(self):
        while True:
            try:
                question, where = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            except OSError:
                return
            self._socket.sendto(self._answer(question), where)

    def _answer(self, question):
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        kind = struct.unpack_from("!H", question, at + 1)[0]
        name = ".".join(labels)
        self.asked.append(name)
        address = self._names.get(name)
        found = [] if address is None or kind != 1 else [socket.inet_aton(address)]
        flags = 0x8180 if address is not None else 0x8183
        head = question[:2] + struct.pack("!HHHHH", flags, 1, len(found), 0, 0)
        answers = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 1, 4) + one for one in found)
        return head + question[12 : at + 5] + answers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()
        self._thread.join()
