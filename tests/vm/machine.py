"""A virtual machine without hardware help (qemu, TCG): made of a kernel and a tree, used once."""

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time

from tests.vm.failing import Failing

_HERE = os.path.dirname(__file__)
#: What the disk needs, before there is one.
_FIRST_MODULES = ("virtio_pci", "virtio_blk")
_TAIL = 40  # lines, and all of a panic's trace, which may be longer than that
_SILENCE = 420.0  # seconds without any output after which the machine counts as hanging
_GOING = 10.0  # seconds that qemu may take to end once it has closed its output
_KERNEL_LINE = "console=ttyS0 panic=-1 oops=panic mitigations=off nokaslr quiet loglevel=4 nowatchdog"


class Machine:
    """:param kernel: where the files of the kernel's package are.
    :param directory: for disks and the console's text; what an earlier machine had there is overwritten.
    """

    def __init__(self, kernel, directory):
        (self.version,) = os.listdir(f"{kernel}/lib/modules")
        self._kernel = kernel
        self._directory = directory

    def put_modules(self, tree):
        """The kernel's modules and its own first program into a tree, and the lists that modprobe reads."""
        shutil.copytree(f"{self._kernel}/lib/modules", f"{tree}/usr/lib/modules", symlinks=True)
        subprocess.run(["busybox", "depmod", "-b", f"{tree}/usr", self.version], check=True)
        os.symlink("../bin/busybox", f"{tree}/usr/sbin/modprobe")

    def make_disk(self, tree, size="4G"):
        """A disk of what is in ``tree``."""
        disk = f"{self._directory}/disk.img"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(disk)
        # Without a journal: nobody looks at it after the machine has gone.
        made = subprocess.run(
            ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", tree, disk, size],
            capture_output=True,
            text=True,
        )
        if made.returncode:
            raise Failing(f"cannot make the machine's disk: mke2fs: {made.stderr.strip()}")

    def run(self, patience):
        """Switch it on, and wait until it is off. What the tests print there is printed here.

        :param patience: seconds.
        :returns: the directory with what is in its ``/results``.
        :raises Failing: it did not come up, fell, or took too long.
        """
        self._make_ramdisk()
        results, console = f"{self._directory}/results.img", f"{self._directory}/console.log"
        with open(results, "wb") as file:
            file.truncate(64 << 20)
        start = time.monotonic()
        command = self._command(results, console)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as qemu:
            try:
                if not _passed_on(qemu.stdout.fileno(), start + patience):
                    why = f"was not done within {patience:g} s, or printed nothing for {_SILENCE:g} s"
                    raise Failing(f"the machine {why}", self._tail(console))
                qemu.wait(_GOING)
            finally:
                qemu.kill()
                os.unlink(f"{self._directory}/disk.img")
        took = time.monotonic() - start
        if qemu.returncode:
            raise Failing(f"qemu ended with exit status {qemu.returncode}", self._tail(console))
        return self._unpacked(results, console, took)

    def _command(self, results, console):
        drive = "format=raw,if=none,cache=unsafe,discard=unmap"
        return [
            *("setpriv", "--pdeathsig", "KILL", "--"),  # it does not outlive who has started it
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max", "-smp", "2"),
            *("-m", "3072", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", self._image(), "-initrd", f"{self._directory}/first.cpio", "-append", _KERNEL_LINE),
            *(
                "-drive",
                f"file={self._directory}/disk.img,id=disk,{drive}",
                "-device",
                "virtio-blk-pci,drive=disk",
            ),
            *("-drive", f"file={results},id=results,{drive}", "-device", "virtio-blk-pci,drive=results"),
            *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
            *("-chardev", "file,id=tests,path=/dev/stdout,append=on", "-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=tests,name=tests"),
        ]

    def _image(self):
        return f"{self._kernel}/boot/vmlinuz-{self.version}"

    def _modules(self):
        return f"{self._kernel}/lib/modules/{self.version}"

    def _first_modules(self):
        """Paths of the modules that the disk needs, each after those that it needs itself."""
        if not os.path.exists(f"{self._modules()}/modules.dep"):
            subprocess.run(["busybox", "depmod", "-b", self._kernel, self.version], check=True)
        order = []
        with open(f"{self._modules()}/modules.dep") as file:
            for line in file:
                path, _, needed = line.partition(":")
                if os.path.basename(path).partition(".")[0] in _FIRST_MODULES:
                    order += [one for one in [*reversed(needed.split()), path] if one not in order]
        return order

    def _make_ramdisk(self):
        root = f"{self._directory}/first"
        shutil.rmtree(root, ignore_errors=True)
        for name in ("bin", "dev", "modules", "new"):
            os.makedirs(f"{root}/{name}")
        shutil.copy("/bin/busybox", f"{root}/bin/busybox")
        shutil.copy(f"{_HERE}/first", f"{root}/init")
        os.chmod(f"{root}/init", 0o755)
        order = self._first_modules()
        for path in order:
            shutil.copy(f"{self._modules()}/{path}", f"{root}/modules")
        with open(f"{root}/modules/order", "w") as file:
            file.writelines(f"{os.path.basename(path)}\n" for path in order)
        names = "\n".join(
            os.path.relpath(os.path.join(at, name), root)
            for at, below, files in os.walk(root)
            for name in (*below, *files)
        )
        with open(f"{self._directory}/first.cpio", "wb") as file:
            subprocess.run(
                ["busybox", "cpio", "-o", "-H", "newc"],
                cwd=root,
                input=names.encode(),
                stdout=file,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        shutil.rmtree(root)

    def _unpacked(self, results, console, took):
        place = f"{self._directory}/results"
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        if subprocess.run(["tar", "-C", place, "-xf", results], capture_output=True).returncode or not os.listdir(
            place
        ):
            raise Failing(f"the machine fell after {took:.0f} s", self._tail(console))
        os.unlink(results)
        return place

    def _tail(self, console):
        with open(console, errors="replace") as file:
            return tail(file.read())


def tail(console):
    """:param console: all that a machine's console printed.
    :returns: its last lines; of a kernel that panicked, all that it printed of that, and the lines before.
    """
    lines = [line.rstrip() for line in console.splitlines()]
    panic = next((number for number, line in enumerate(lines) if "Kernel panic - " in line), len(lines))
    return "\n".join(lines[max(0, panic - _TAIL) :])


def _passed_on(source, deadline):
    """Prints all that comes from a pipe. :returns: whether it came to an end in time, without a long silence."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if not poll.poll(min(left, _SILENCE) * 1000):
            return False
        chunk = os.read(source, 65536)
        if not chunk:
            return True
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    return False
