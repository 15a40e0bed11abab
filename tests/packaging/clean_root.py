"""A clean Debian root with mounts, a network and processes of its own, in which a test may do what it likes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kit.waiting import until

ROOT = Path(__file__).parents[2]
#: A clean root, with what the package depends on in apt's cache; `./dev test-all` makes it.
CLEAN = ROOT / ".dev/deb/root.tar"
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}

#: Makes a directory the root of a host of its own. In a mere chroot no user namespace can be made.
BEGIN = """
mount --bind "$1" "$1"
mkdir "$1/old"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs -o mode=0755 tmpfs "$1/run"
ip link set lo up
cd "$1"
pivot_root . old
umount --lazy old
rmdir old
: >/run/clean-root
# As the first process it reaps those whose parents have ended.
while :; do sleep 3600; done
"""


class CleanRoot:
    """:param root: an empty directory; it holds the clean root from now on."""

    def __init__(self, root: Path) -> None:
        assert CLEAN.exists(), "no clean root: ./dev test-all makes it"
        subprocess.run(["tar", "-C", root, "-xf", CLEAN], check=True)
        self.root = root
        own = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private")
        self._holder = subprocess.Popen([*own, "sh", "-euc", BEGIN, "machine", root])
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        until(lambda: children.read_text().split())
        (self._pid,) = children.read_text().split()
        #: Words before a program of the host that is to use the root's network.
        self.network = ("nsenter", "--target", self._pid, "--net", "--")
        # Before that, a command would work on the host.
        until(lambda: self("test", "-e", "/run/clean-root").returncode == 0)

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]:
        enter = ("nsenter", "--target", self._pid, "--mount", "--net", "--pid", "--root", "--wd", "--")
        return subprocess.run(
            [*enter, *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
            timeout=600,
        )

    def out(self, *words: object) -> str:
        done = self(*words)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def put(self, file: Path, name: str) -> None:
        """Copies a file into its ``/root``."""
        (self.root / "root" / name).write_bytes(file.read_bytes())

    def install(self, *packages: str) -> None:
        self.out("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages)

    def install_dependencies(self, package: str) -> None:
        """:param package: path of a package in the root."""
        needs = self.out("dpkg-deb", "--field", package, "Depends").split(",")
        self.install(*dict.fromkeys(name.split()[0] for name in needs))

    def end(self) -> None:
        self._holder.kill()
        self._holder.wait()
