"""The walls around a container by default, as a program finds them from inside: Kurma, podman and Docker.

``python bench/compare_isolation.py`` prints the table of docs/explanation/isolation.md. It needs the packages of
``./dev bench``. Nothing here passes or fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import host
import oci
from compare_podman import capabilities
from measuring import BenchError
from runtimes import Kurma, Podman, output, program

#: Prints ``name<TAB>value`` lines. A call that fails says why; one that is allowed says so.
PROBE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void call(const char *name, long done) {
    printf("%s\t%s\n", name, done < 0 ? strerrorname_np(errno) : "allowed");
}

static void line(const char *name, const char *path, const char *begins) {
    char text[512];
    FILE *file = fopen(path, "r");
    if (!file) { printf("%s\t%s\n", name, strerrorname_np(errno)); return; }
    while (fgets(text, sizeof text, file))
        if (!strncmp(text, begins, strlen(begins))) {
            text[strcspn(text, "\n")] = 0;
            char *value = text + strlen(begins);
            while (*value == ' ' || *value == '\t') value++;
            for (char *at = value; *at; at++) if (*at == '\t') *at = ' ';
            printf("%s\t%s\n", name, value);
            break;
        }
    fclose(file);
}

static void path(const char *name) {
    struct stat found;
    char byte;
    printf("%s\t", name);
    if (stat(name, &found)) { printf("%s\n", errno == ENOENT ? "not there" : strerrorname_np(errno)); return; }
    if (S_ISCHR(found.st_mode)) { puts("masked"); return; }
    int fd = open(name, O_RDONLY | O_NONBLOCK);
    if (fd < 0) { printf("%s\n", strerrorname_np(errno)); return; }
    if (S_ISDIR(found.st_mode)) {
        char entries[4096];
        long got = syscall(SYS_getdents64, fd, entries, sizeof entries);
        puts(got <= 48 ? "masked" : "readable");
    } else {
        int read_only = open(name, O_WRONLY | O_NONBLOCK) < 0 && errno == EROFS;
        const char *found = read(fd, &byte, 1) < 0 ? strerrorname_np(errno) : "readable";
        printf("%s%s\n", found, read_only ? ", read-only" : "");
    }
}

int main(void) {
    line("CapBnd", "/proc/self/status", "CapBnd:");
    line("no_new_privs", "/proc/self/status", "NoNewPrivs:");
    line("seccomp", "/proc/self/status", "Seccomp:");
    line("uid_map", "/proc/self/uid_map", "");
    line("ping_group_range", "/proc/sys/net/ipv4/ping_group_range", "");
    call("raw socket", socket(AF_INET, SOCK_RAW, 1));
    call("ICMP echo socket", socket(AF_INET, SOCK_DGRAM, 1));
    call("packet socket", socket(AF_PACKET, SOCK_RAW, 0));
    call("audit socket", socket(AF_NETLINK, SOCK_RAW, 9));
    call("AF_ALG socket", socket(38, SOCK_SEQPACKET, 0));
    call("AF_VSOCK socket", socket(40, SOCK_STREAM, 0));
    call("mount", mount("x", "/", "tmpfs", 0, ""));
    call("add_key", syscall(SYS_add_key, "user", "x", "y", 1L, -2L));
    call("keyctl", syscall(SYS_keyctl, 0L, -3L, 0L));
    call("io_uring_setup", syscall(SYS_io_uring_setup, 1L, (char[256]){0}));
    call("bpf", syscall(SYS_bpf, 0L, 0L, 0L));
    call("perf_event_open", syscall(SYS_perf_event_open, 0L, 0L, -1L, -1L, 0L));
    call("userfaultfd", syscall(SYS_userfaultfd, 1L));
    call("open_by_handle_at", syscall(SYS_open_by_handle_at, -1L, 0L, 0L));
    call("mknod of a disk", mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0)));
    call("opening it", open("/tmp/disk", O_RDONLY));
    static const char *all[] = {
        "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi", "/proc/interrupts", "/proc/key-users",
        "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/dynamic_debug", "/proc/kallsyms",
        "/sys/firmware", "/sys/devices/virtual/powercap", "/sys/dev/block", "/sys/kernel/security",
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) path(all[i]);
    call("user namespace", unshare(CLONE_NEWUSER));
    return 0;
}
"""
_NAMES = ("App Container image", "registry image", "podman", "Docker")


def root(work: str) -> str:
    """A root filesystem with the probe alone."""
    with open(f"{work}/probe.c", "w") as file:
        file.write(PROBE)
    for name in ("bin", "tmp"):
        os.makedirs(f"{work}/probed/{name}")
    output(["gcc", "-static", "-o", f"{work}/probed/bin/probe", f"{work}/probe.c"], os.environ)
    return f"{work}/probed"


def facts(argv: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    said = output(argv, environment)
    found = dict(line.split("\t", 1) for line in said.splitlines() if "\t" in line)
    found["CapBnd"] = capabilities(found["CapBnd"])
    found["uid_map"] = " ".join(found["uid_map"].split())
    found["seccomp"] = {"0": "none", "2": "filter"}.get(found["seccomp"], found["seccomp"])
    return found


def of_kurma(work: str, rootfs: str, registry: oci.Registry, layer: bytes) -> Iterator[dict[str, str]]:
    kurma = Kurma(work)
    archive = f"{work}/probe.aci"
    words = ["image", "build", "--from-rootfs", rootfs, "--name", "example.com/probe", "--exec", "/bin/probe"]
    output([kurma.program, *words, "-o", archive], kurma.environment)
    layout = f"{work}/layout"
    oci.write_layout(layout, layer, {"Cmd": ["/bin/probe"]})
    for image in (archive, f"docker://{registry.push(layout, 'probe')}"):
        yield facts([kurma.program, "run", "--rm", "--net", "none", image], kurma.environment)


def of_podman(work: str, rootfs: str) -> dict[str, str]:
    podman = Podman(work)
    podman.add_image(rootfs)
    try:
        return facts(podman.run("--network", "none", command=["/bin/probe"]), podman.environment)
    finally:
        podman.remove_all()


@contextmanager
def dockerd(work: str) -> Iterator[list[str]]:
    """A Docker daemon of our own, without a network. :yields: the client's command."""
    socket = "unix:///run/docker-bench.sock"
    words = [program("dockerd"), "--bridge=none", "--iptables=false", "--ip6tables=false", "-H", socket]
    words += ["--data-root", f"{work}/docker", "--exec-root", "/run/docker-bench", "--storage-driver", "vfs"]
    words += ["--pidfile", "/run/docker-bench.pid", "--cgroup-parent", f"/{host.cgroup_parent(work)}"]
    client = [program("docker"), "-H", socket]
    with open(f"{work}/docker.log", "wb") as log:
        daemon = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        for _ in range(100):
            if subprocess.run([*client, "version"], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.2)
        else:
            raise BenchError(f"dockerd does not answer: see {work}/docker.log")
        yield client
    finally:
        daemon.terminate()
        daemon.wait()


def of_docker(work: str, layer: bytes) -> dict[str, str]:
    with open(f"{work}/layer.tar", "wb") as file:
        file.write(layer)
    with dockerd(work) as client:
        output([*client, "import", f"{work}/layer.tar", "probe"], os.environ)
        return facts([*client, "run", "--rm", "--network", "none", "probe", "/bin/probe"], os.environ)


def table(found: list[dict[str, str]]) -> str:
    names = list(dict.fromkeys(name for side in found for name in side))
    # What all have goes into the one cell, so that the rows are short.
    common = set.intersection(*[set(side["CapBnd"].split()) for side in found])
    for side in found:
        more = [name for name in side["CapBnd"].split() if name not in common]
        side["CapBnd"] = f"{len(side['CapBnd'].split())}{': ' if more else ''}{' '.join(more)}"
    lines = [f"| | {' | '.join(_NAMES)} |", "|---|" + "---|" * len(_NAMES)]
    lines += [f"| {name} | {' | '.join(side.get(name, '') for side in found)} |" for name in names]
    return "\n".join([*lines, "", f"Capabilities of all four: {' '.join(sorted(common))}."])


def main() -> int:
    work = host.enter()
    try:
        rootfs = root(work)
        layer = oci.layer(rootfs)
        with oci.Registry(work) as registry:
            found = list(of_kurma(work, rootfs, registry, layer))
        found += [of_podman(work, rootfs), of_docker(work, layer)]
    except BenchError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
