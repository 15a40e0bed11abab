"""The units of ``packaging/systemd`` under a real systemd, in a virtual machine; ``./dev test-vm`` runs this, too.

What is tested is in ``units_inside.py``, which runs there. Not found by pytest itself: it needs qemu and a kernel.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys

from tests.vm import packages, run, tree, verdict
from tests.vm.machine import Machine

_INSIDE = "tests/vm/units_inside.py"
_PROGRAMS = ("busybox-static", "ca-certificates", "gnupg", "iproute2", "mount", "nftables", "procps", "python3")
#: The first program: what a distribution's initial RAM disk has done by then, and systemd. Its own links are those
#: of a package of its own, which a host without it as its first program lacks.
_INIT = """\
#!/bin/busybox sh
mount -t proc -o nosuid,nodev,noexec proc /proc
modprobe -a virtio_console overlay veth bridge autofs4
exec /lib/systemd/systemd
"""
_UNIT = """\
[Service]
Type=exec
ExecStart=/bin/sh /job
StandardInput=null
TasksMax=infinity
"""
_JOB = """\
tries=200
while port=$(echo /dev/vport*) && [ ! -c "$port" ] && [ $((tries -= 1)) -gt 0 ]; do sleep 0.05; done
exec >"$port" 2>&1
cd {project} || exit 99
PATH={project}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
KURMA_TEST_RECORD=/results/ran
export PATH KURMA_TEST_RECORD HOME=/root LANG=C.UTF-8
mkdir -p /results
python -m pytest -p tests.vm.ran -p no:cacheprovider --basetemp=/tmp/pytest -o console_output_style=classic \\
	--durations=10 {tests}
echo $? >/results/exit
[ "$(cat /results/exit)" = 0 ] || journalctl -b --no-pager | tail -n 60
tar -C /results -cf /dev/vdb .
sync
exec busybox poweroff -f
"""


def test_units_under_systemd(tmp_path):
    wanted = shlex.split(os.environ.get("KURMA_TEST_UNITS", ""))
    machine = Machine(packages.kernel(f"{run.PROJECT}/.dev/vm"), str(tmp_path))
    expected = _collected(tmp_path, wanted)
    root = f"{tmp_path}/tree"
    os.mkdir(root)
    tree.build(root, run.PROJECT, (*_PROGRAMS, "systemd"))
    machine.put_modules(root)
    boot_to_job(root, _JOB.format(project=shlex.quote(run.PROJECT), tests=shlex.join([_INSIDE, *wanted])))
    for name in ("kurma", "kurmad"):
        os.symlink(f"{run.PROJECT}/.venv/bin/{name}", f"{root}/usr/bin/{name}")
    machine.make_disk(root)
    shutil.rmtree(root)
    verdict.check(machine.run(run._PATIENCE), expected)


def boot_to_job(root, job):
    """Has systemd run a shell script at the end of its boot. :param root: a tree."""
    _put(f"{root}/usr/sbin/init", _INIT, 0o755)
    _put(f"{root}/job", job)
    _put(f"{root}/etc/systemd/system/kurma-test.service", _UNIT)
    os.makedirs(f"{root}/etc/systemd/system/multi-user.target.wants", exist_ok=True)
    for target, link in (
        ("../kurma-test.service", "multi-user.target.wants/kurma-test.service"),
        ("/lib/systemd/system/multi-user.target", "default.target"),
        ("/dev/null", "getty@tty1.service"),
        ("/dev/null", "serial-getty@ttyS0.service"),
    ):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{root}/etc/systemd/system/{link}")
        os.symlink(target, f"{root}/etc/systemd/system/{link}")
    # Without it, systemd takes the boot for the first one, and asks questions.
    _put(f"{root}/etc/machine-id", "0123456789abcdef0123456789abcdef\n")


def _put(path, text, mode=0o644):
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)


def _collected(directory, wanted):
    record = f"{directory}/collected"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.vm.ran", "-q", "--collect-only", _INSIDE, *wanted],
        cwd=run.PROJECT,
        env={**os.environ, "KURMA_TEST_RECORD": record},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return sorted(verdict.record(record))
