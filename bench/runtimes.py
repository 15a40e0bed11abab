"""Kurma and its peers on one busybox root: how each is set up and called. All of it lies below one directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from host import STATES, cgroup_parent
from measuring import BenchError

_APPLETS = ("cat", "echo", "env", "head", "id", "ls", "sh", "sleep", "true", "wc", "yes")


def program(name: str) -> str:
    """Its path. :raises BenchError: it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"{name} is not installed: ./dev bench installs what is needed")
    return found


def output(argv: Sequence[str], environment: Mapping[str, str], stdin: int | None = None) -> str:
    """What a command of the set-up prints. :raises BenchError: it failed."""
    done = subprocess.run(
        argv, env=dict(environment), stdin=stdin or subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"{' '.join(argv)}: ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def busybox_root(work: str) -> str:
    """A root filesystem of Debian's static busybox."""
    root = f"{work}/rootfs"
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "out"):
        os.makedirs(f"{root}/{name}")
    shutil.copy(program("busybox"), f"{root}/bin/busybox")
    for applet in _APPLETS:
        os.symlink("busybox", f"{root}/bin/{applet}")
    for name, text in (("passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("group", "root:x:0:\n")):
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    return root


class Kurma:
    """Its own state directory, and the defaults, whatever this machine's configuration says.

    :param name: of the state directory, one of :data:`host.STATES`.
    """

    def __init__(self, work: str, name: str = STATES[0]) -> None:
        self.state = f"{work}/{name}"
        configuration = f"{work}/kurma.json"
        with open(configuration, "w") as file:
            file.write("{}\n")
        self.environment = {**os.environ, "KURMA_DIR": self.state, "KURMA_CONFIG": configuration}
        self.program = os.path.join(os.path.dirname(sys.executable), "kurma")
        if not os.access(self.program, os.X_OK):
            raise BenchError(f"{self.program} is not there: run this by ./dev bench")
        self.image = ""

    def build_image(self, root: str, archive: str) -> None:
        words = ["image", "build", "--from-rootfs", root, "--name", "example.com/busybox", "--exec", "/bin/sh"]
        output([self.program, *words, "-o", archive], self.environment)

    def add_image(self, archive: str) -> None:
        """The image, by its ID; the stager's image too, so that no measured run builds it."""
        self.image = output([self.program, "image", "fetch", archive], self.environment).strip()
        output([self.program, "stager", "build", "default"], self.environment)

    def run(self, *options: str, command: Sequence[str], keep: bool = False) -> list[str]:
        first, *rest = command
        words = [self.program, "run", *(() if keep else ("--rm",)), *options, self.image, "--exec", first]
        return [*words, "--", *rest] if rest else words


class Podman:
    """Its own storage. No CAP_SYS_RESOURCE: limits as they are. The runtime is runc: crun 1.8 refuses hosts with
    both cgroup versions.

    :param name: of its directory.
    """

    def __init__(self, work: str, name: str = "podman") -> None:
        self.environment = dict(os.environ)
        for part in ("root", "runroot", "tmp"):
            os.makedirs(f"{work}/{name}/{part}")
        self.root = f"{work}/{name}/root"
        self.program = program("podman")
        self.options = ["--root", self.root, "--runroot", f"{work}/{name}/runroot"]
        self.options += ["--tmpdir", f"{work}/{name}/tmp", "--storage-driver", "overlay", "--runtime", "runc"]
        self.options += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--log-level", "error"]
        self._limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        self._limits += ["--cgroup-parent", f"/{cgroup_parent(work)}"]
        self.image = "localhost/busybox:1"

    def add_image(self, root: str) -> None:
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
            assert tar.stdout is not None
            output(self.words("import", "-q", "-", self.image), self.environment, tar.stdout.fileno())

    def words(self, *words: str) -> list[str]:
        return [self.program, *self.options, *words]

    def run(
        self, *options: str, command: Sequence[str], image: str | None = None, keep: bool = False
    ) -> list[str]:
        words = self.words("run", *(() if keep else ("--rm",)), *self._limits, *options)
        return [*words, image or self.image, *command]

    def remove_all(self) -> None:
        output(self.words("rm", "--all", "--force", "--time", "0"), self.environment)


class Runc:
    """A bundle per command."""

    def __init__(self, work: str, root: str) -> None:
        self.environment = dict(os.environ)
        self.program = program("runc")
        self._work = work
        self._root = root
        self._count = 0

    def bundle(self, command: Sequence[str], binds: Mapping[str, str]) -> str:
        """The directory of a bundle: what ``runc spec`` makes, without a terminal, with these binds."""
        self._count += 1
        directory = f"{self._work}/runc/bundle-{self._count}"
        os.makedirs(directory)
        output([self.program, "spec", "--bundle", directory], self.environment)
        with open(f"{directory}/config.json") as file:
            spec = json.load(file)
        spec["process"] |= {"terminal": False, "args": list(command)}
        spec["process"].pop("rlimits", None)
        spec["root"] = {"path": self._root, "readonly": True}
        spec["linux"]["cgroupsPath"] = f"/{cgroup_parent(self._work)}/runc-{self._count}"
        spec["mounts"] += [
            {"destination": target, "type": "bind", "source": source, "options": ["rbind", "rw"]}
            for target, source in binds.items()
        ]
        with open(f"{directory}/config.json", "w") as file:
            json.dump(spec, file)
        return directory

    def run(self, bundle: str) -> list[str]:
        name = f"bench-{os.path.basename(bundle)}"
        return [self.program, "--root", f"{self._work}/runc/state", "run", "--bundle", bundle, name]
