"""``ping`` without CAP_NET_RAW, and the sockets that reach past a pod, tried from inside."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.kit.command import Kurma
from tests.kit.registry import BUSYBOX, OciDir

pytestmark = pytest.mark.root

#: Opens a socket of each kind and says what came of it. Audit: AF_NETLINK with NETLINK_AUDIT.
SOCKETS = r"""
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
int main(void) {
    static const struct { const char *name; int family, type, protocol; } all[] = {
        {"icmp", 2, SOCK_DGRAM, 1}, {"raw", 2, SOCK_RAW, 1}, {"packet", 17, SOCK_RAW, 0},
        {"audit", 16, SOCK_RAW, 9}, {"route", 16, SOCK_RAW, 0}, {"vsock", 40, SOCK_STREAM, 0},
    };
    for (int i = 0; i < 6; i++) {
        int fd = socket(all[i].family, all[i].type, all[i].protocol);
        printf("%s=%d ", all[i].name, fd < 0 ? errno : 0);
    }
    puts("");
    return 0;
}
"""
#: Asks 127.0.0.1 as Alpine's ping does: by a raw socket, or by an ICMP echo socket where that is refused. Debian's
#: busybox lacks Alpine's patch for the second.
PING = r"""
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
int main(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    unsigned char echo[8] = {8, 0, 0xf7, 0xff, 0, 0, 0, 0}, answer[128];
    int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    if (fd < 0 && errno == EPERM) fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
    if (fd < 0 || sendto(fd, echo, 8, 0, (void *)&to, sizeof to) != 8) { perror("ping"); return 1; }
    if (recv(fd, answer, sizeof answer, 0) < 8) { perror("ping"); return 1; }
    puts("1 packets transmitted, 1 packets received");
    return 0;
}
"""
EPERM, EINVAL, EAFNOSUPPORT = 1, 22, 97
BOUNDING = "sed -n 's/^CapBnd:.//p' /proc/self/status"
NET_RAW = 1 << 13


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("probe")
    for name, text in (("sockets", SOCKETS), ("ping", PING)):
        (at / f"{name}.c").write_text(text)
        subprocess.run(["musl-gcc", "-static", "-o", at / name, at / f"{name}.c"], check=True)
    return at / "sockets"


def layer(root: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, ".")
    return out.getvalue()


def busybox_root(root: Path, *applets: str) -> None:
    (root / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    for applet in ("sh", "sed", "ls", *applets):
        (root / "bin" / applet).symlink_to("busybox")


def add_with_libraries(root: Path, program: str, at: str) -> None:
    """Copies a program of Debian's and what its loader needs."""
    (root / at).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, root / at)
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"(/\S+) \(0x", said):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, probe: Path) -> str:
    """An OCI layout. ``debian`` has the ping of iputils, setuid root as its package makes it without setcap."""
    at = tmp_path_factory.mktemp("ping")
    layout = OciDir(at / "layout")
    layout.path.mkdir()
    alpine, debian = at / "alpine", at / "debian"
    busybox_root(alpine)
    for name in ("sockets", "ping"):
        shutil.copy(probe.with_name(name), alpine / "bin" / name)
    busybox_root(debian)
    add_with_libraries(debian, "/bin/ping", "usr/bin/ping")
    os.chmod(debian / "usr/bin/ping", 0o4755)
    for name, root in (("alpine", alpine), ("debian", debian)):
        layout.image(name, [layer(root)], {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/bin:/bin"]})
    return f"oci:{layout.path}"


@pytest.mark.parametrize("userns", ["none", "auto"])
@pytest.mark.parametrize("kind", ["alpine", pytest.param("debian", marks=pytest.mark.full)])
def test_ping_works_without_its_capability(kurma: Kurma, images: str, kind: str, userns: str) -> None:
    # By its path: busybox's shell would run its own ping.
    script = f"{BOUNDING}; $(ls /usr/bin/ping /bin/ping 2>/dev/null) -c 1 127.0.0.1"
    for user in ("0", "1000"):
        words = ("--net", "none", "--userns", userns, "--user", user, "--group", user, "--exec", "/bin/sh")
        done = kurma("run", "--rm", *words, f"{images}:{kind}", "--", "-c", script)
        assert done.returncode == 0, done.stdout + done.stderr
        held, *said = done.stdout.splitlines()
        assert not int(held, 16) & NET_RAW
        assert "1 packets transmitted, 1 " in "\n".join(said)


def test_a_program_with_file_capabilities_that_the_app_lacks(kurma: Kurma, images: str) -> None:
    """The kernel refuses to execute it; Kurma says why."""
    del images
    root = kurma.state.parent / "capable"
    busybox_root(root)
    shutil.copy(BUSYBOX, root / "bin/ping")
    os.setxattr(
        root / "bin/ping", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000")
    )
    archive = f"{root}.aci"
    kurma.out(
        *("image", "build", "--from-rootfs", str(root), "--name", "example.com/ping", "--exec", "/bin/ping"),
        *("-o", archive),
    )
    done = kurma("run", "--rm", "--net", "none", "--caps-remove", "CAP_NET_RAW", archive)
    assert done.returncode == 126
    assert "file capabilities (see getcap) give it more than the app has" in done.stderr


def test_sockets_that_reach_past_the_pod(kurma: Kurma, images: str, probe: Path) -> None:
    """Of an App Container image CAP_NET_RAW and CAP_AUDIT_WRITE are in the default set."""

    def tried(*words: str) -> dict[str, int]:
        said = kurma.out("run", "--rm", "--net", "none", "--exec", "/bin/sockets", *words)
        return {name: int(code) for name, code in re.findall(r"(\w+)=(\d+)", said)}

    closed = {"packet": EPERM, "audit": EINVAL, "vsock": EAFNOSUPPORT}
    assert tried(f"{images}:alpine") == {"icmp": 0, "route": 0, "raw": EPERM, **closed}
    root = kurma.state.parent / "sockets"
    (root / "bin").mkdir(parents=True)
    shutil.copy(probe, root / "bin/sockets")
    archive = f"{root}.aci"
    kurma.out("image", "build", "--from-rootfs", str(root), "--name", "example.com/sockets", "-o", archive)
    assert tried(archive) == {"icmp": 0, "route": 0, "raw": 0, **closed}
    given = ("--caps-retain", "CAP_NET_RAW,CAP_NET_ADMIN")
    assert tried(*given, archive)["packet"] == 0
