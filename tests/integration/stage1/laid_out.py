"""A pod's directory made by hand, as rkt 1.30's stage0 makes it (the Stage 1 ACI implementor's guide, and rkt's
``stage0/run.go``), on a host that has a shell and little else: no Python, nothing of Kurma's. An image's
entrypoints are run there as the guide has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kurma_core.linux import mounts, namespaces
from kurma_core.trees import overlay
from tests.kit.images import busybox_root

PREFIX = "coreos.com/rkt/stage1/"
#: High enough to be nobody else's.
LOCK = 50


class BareHost:
    """A root file system with busybox alone, that stands for a host; one image is unpacked beside its pods."""

    def __init__(self, directory: Path, image: str) -> None:
        self.root = directory / "host"
        busybox_root(str(self.root))
        for name in ("proc", "sys", "dev", "run", "pods/run", "srv"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self._pods: set[str] = set()
        self.image = directory / "image"
        with tarfile.open(image) as archive:
            archive.extractall(self.image)
        self.manifest = json.loads((self.image / "manifest").read_text())
        self.entrypoints = {
            each["name"].removeprefix(PREFIX): each["value"] for each in self.manifest["annotations"]
        }
        # Somebody holds its mounts: what one entrypoint mounts on the host, the next one finds there.
        self._holder = subprocess.Popen(["/bin/sleep", "1000000"], preexec_fn=self._make)
        self._namespace = os.open(f"/proc/{self._holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def pod(self, *apps: dict[str, Any], overlaid: bool = False, **more: Any) -> LaidOut:
        """:param apps: of the pod manifest; ``image`` of one is its image's manifest's ``app``.
        :param overlaid: as rkt does it unless it is told ``--no-overlay``.
        """
        pod = LaidOut(self, self.image / "rootfs", apps, more, overlaid=overlaid)
        self._pods.add(f"rkt-{pod.uuid}")
        return pod

    def install(self, *programs: str) -> None:
        """Programs of the machine's, with the libraries that they are linked to; a directory as it is."""
        for program in programs:
            path = os.path.realpath(program)
            if os.path.isdir(path):
                shutil.copytree(path, f"{self.root}{program}", dirs_exist_ok=True)
                continue
            linked = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout.split()
            names = [word for word in linked if word.startswith("/")]
            for source, target in ((path, program), *((name, name) for name in names)):
                os.makedirs(os.path.dirname(f"{self.root}{target}"), exist_ok=True)
                shutil.copy(source, f"{self.root}{target}")

    def clear(self) -> None:
        """Its mounts, and the cgroups of those pods that no ``gc`` was called for."""
        self._holder.kill()
        self._holder.wait()
        os.close(self._namespace)
        for directory, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
            if self._pods.intersection(directory.split("/")):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)

    @property
    def mounts(self) -> set[str]:
        """Where something is mounted there."""
        return {each.target for each in mounts.mountinfo(self._holder.pid)}

    def path(self, inside: str) -> Path:
        """Of its own, with what is mounted there."""
        return Path(f"/proc/{self._holder.pid}/root{inside}")

    def call(self, work: Callable[[], object]) -> None:
        """Has a child do it there."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.enter()
                work()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0

    def enter(self) -> None:
        """In a child: this root is all that there is of the host."""
        namespaces.setns(self._namespace)

    def _make(self) -> None:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_private("/")
        for name in ("proc", "sys", "dev"):
            mounts.bind_path(f"/{name}", f"{self.root}/{name}")
        tree = mounts.open_tree(mounts.AT_FDCWD, str(self.root))
        mounts.move_mount_to(tree, str(self.root))
        mounts.pivot_root(tree)


class LaidOut:
    """One pod's directory; :attr:`place` on the machine, :attr:`inside` on the bare host."""

    def __init__(
        self,
        host: BareHost,
        image: Path,
        apps: tuple[dict[str, Any], ...],
        more: dict[str, Any],
        *,
        overlaid: bool,
    ) -> None:
        self.host = host
        self.uuid = str(uuid.uuid4())
        self.inside = f"/pods/run/{self.uuid}"
        self.place = host.root / "pods/run" / self.uuid
        self.rootfs = self.place / "stage1/rootfs"
        self.overlaid = overlaid
        (self.place / "stage1").mkdir(parents=True)
        (self.place / "stage1/manifest").write_text(json.dumps(host.manifest))
        if overlaid:
            self.rootfs = host.path(f"{self.inside}/stage1/rootfs")
            self._overlay(image, f"{self.inside}/stage1/rootfs", "")
            # So that it is in the upper directory, where the exit codes are read; it has to be there.
            os.utime(self.rootfs / "rkt/status")
        else:
            shutil.copytree(image, self.rootfs, symlinks=True)
        entries = []
        for app in apps:
            entry = dict(app)
            image_app = entry.pop("image", {"exec": ["/bin/true"], "user": "0", "group": "0"})
            stage2 = self.rootfs / "opt/stage2" / app["name"]
            if overlaid:
                tree = self.place / "trees" / app["name"]
                busybox_root(str(tree))
                stage2.mkdir(parents=True)
                self._overlay(tree, f"{self.inside}/stage1/rootfs/opt/stage2/{app['name']}/rootfs", app["name"])
            else:
                busybox_root(str(stage2 / "rootfs"))
            (stage2 / "rootfs/etc/mtab").symlink_to("../proc/self/mounts")
            of_image = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": f"example.com/{app['name']}"}
            (stage2 / "manifest").write_text(json.dumps({**of_image, "app": image_app}))
            entries.append({"image": {"id": "sha512-" + "0" * 64}, **entry})
        manifest = {"acKind": "PodManifest", "acVersion": "0.8.11", "apps": entries, **more}
        (self.place / "pod").write_text(json.dumps(manifest))
        self.lock_again()

    def _overlay(self, lower: Path, inside: str, app: str) -> None:
        """rkt's directories for one: ``overlay/TREE/{upper,work}/APP``."""
        made = self.place / "overlay" / (f"tree-{app}" if app else "tree")
        for name in ("upper", "work"):
            (made / name / app).mkdir(parents=True)
        mount = overlay.mount_overlay([str(lower)], str(made / "upper" / app), str(made / "work" / app))

        def show() -> None:
            os.mkdir(inside)
            mounts.move_mount_to(mount, inside)

        self.host.call(show)
        os.close(mount)

    def unmount(self) -> None:
        """What rkt does once ``gc`` has run."""
        below = sorted(each for each in self.host.mounts if each.startswith(f"{self.inside}/"))
        self.host.call(lambda: [mounts.umount(each, mounts.MNT_DETACH) for each in reversed(below)])

    def lock_again(self) -> None:
        """For another ``run``: whoever had the lock has ended."""
        self._lock = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def take_lock(self) -> int:
        """The locked descriptor, which is the caller's to close."""
        fd, self._lock = self._lock, -1
        return fd

    def begin(
        self, entrypoint: str, *words: str, closed: tuple[int, ...] = (), **how: Any
    ) -> subprocess.Popen[bytes]:
        """Executes an entrypoint, relative to stage1's root, from the pod's directory, without the descriptors
        ``closed``."""
        path = f"{self.inside}/stage1/rootfs{self.host.entrypoints[entrypoint]}"
        environment: dict[str, str] = {}
        lock = -1
        if entrypoint == "run" and self._lock >= 0:
            lock = self.take_lock()
            environment["RKT_LOCK_FD"] = str(LOCK)

        def prepare() -> None:
            if lock >= 0:
                os.dup2(lock, LOCK)
                os.set_inheritable(LOCK, True)  # which dup2 leaves as it was if the two are one
            self.host.enter()
            os.chdir(self.inside)
            for fd in closed:
                os.close(fd)

        how.setdefault("stdin", subprocess.DEVNULL)
        how.setdefault("stdout", subprocess.PIPE)
        how.setdefault("stderr", subprocess.PIPE)
        try:
            return subprocess.Popen(
                [path, *words],
                env={**environment, **how.pop("env", {})},
                preexec_fn=prepare,
                close_fds=False,  # all but that one are closed by being executed
                **how,
            )
        finally:
            if lock >= 0:
                os.close(lock)

    def call(self, entrypoint: str, *words: str, timeout: float = 60, **how: Any) -> tuple[int, str, str]:
        """To its end: exit code, standard output, standard error."""
        process = self.begin(entrypoint, *words, **how)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, out.decode(), err.decode()

    def run(self, *words: str) -> tuple[int, str, str]:
        return self.call("run", *words, self.uuid)

    @property
    def statuses(self) -> dict[str, int]:
        root = self.place / "overlay/tree/upper" if self.overlaid else self.rootfs
        files = [each for each in (root / "rkt/status").iterdir() if each.suffix != ".new"]  # not yet whole
        return {each.name: int(each.read_text()) for each in files}

    def pid(self, name: str = "pid") -> int:
        file = self.place / name
        return int(file.read_text()) if file.exists() else 0

    def held(self) -> bool:
        """Whether somebody has the pod's lock."""
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False
