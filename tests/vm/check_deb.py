"""The Debian package under a real systemd, in a virtual machine of a clean Debian root.

``./dev test-vm`` runs this. What is tested is in ``deb_inside.sh``, which runs there. Not found by pytest itself:
it needs qemu and a kernel.
"""

import os
import re
import shutil
from pathlib import Path

from tests.kit.images import busybox_archive
from tests.packaging.clean_root import CleanRoot
from tests.packaging.conftest import checkout, packages
from tests.vm import packages as debian
from tests.vm import run, verdict
from tests.vm.check_units import boot_to_job
from tests.vm.machine import Machine

__all__ = ["checkout", "packages"]

_INSIDE = Path(__file__).with_name("deb_inside.sh")


def test_the_package_under_systemd(tmp_path, packages):
    root = tmp_path / "tree"
    root.mkdir()
    clean = CleanRoot(root)
    try:
        for package, name in zip(packages, ("old.deb", "new.deb"), strict=True):
            clean.put(package, name)
        app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
        clean.put(Path(busybox_archive(str(tmp_path), app)), "busybox.aci")
        clean.install_dependencies("/root/old.deb")
        clean.install("systemd", "systemd-sysv", "dbus")
        clean.out("apt-get", "clean")
    finally:
        clean.end()
    shutil.copy("/bin/busybox", root / "usr/bin/busybox")
    machine = Machine(debian.kernel(f"{run.PROJECT}/.dev/vm"), str(tmp_path))
    machine.put_modules(str(root))
    text = _INSIDE.read_text()
    boot_to_job(str(root), text)
    machine.make_disk(str(root))
    shutil.rmtree(root)
    expected = re.findall(r"(?m)^check (\S+)", text)
    assert len(expected) > 15
    verdict.check(machine.run(run._PATIENCE), expected)
    assert not os.path.exists(root)
