"""``./dev test-vm``: the tests marked ``vm``, on Debian's own kernel with cgroup v2 alone and AppArmor (X7).

A tree of this host's Debian and of the project becomes a disk; Debian's cloud kernel boots from it under qemu,
runs the tests, and switches itself off. Nothing is left but files below ``.dev/vm``.
"""

import contextlib
import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time

from tests.vm import packages, tree, verdict
from tests.vm.failing import Failing
from tests.vm.machine import Machine

PROJECT = os.path.realpath(f"{os.path.dirname(__file__)}/../..")
_HERE = os.path.dirname(__file__)
#: Seconds until a machine counts as hanging. It takes a few minutes by itself, and many more beside other work.
_PATIENCE = float(os.environ.get("KURMA_TEST_VM_SECONDS", 1500))
#: How often a failed test, and a machine that fell or hung, runs again: see CONTRIBUTING.md.
_RERUNS = int(os.environ.get("KURMA_TEST_RERUNS", 0))
#: Seconds until a test in the machine counts as hanging: pytest prints where each of its threads is, and ends.
_HANGING = 300
#: What the tests in the machine, and the machine itself, are made of.
_PROGRAMS = (
    *("bubblewrap", "busybox-static", "ca-certificates", "containernetworking-plugins", "e2fsprogs", "gnupg"),
    *(
        "iproute2",
        "iptables",
        "mount",
        "nftables",
        "openssl",
        "procps",
        "python3",
        "strace",
        "util-linux",
        "xfsprogs",
    ),
)
_JOB = """\
cd {project} || exit 99
PATH={project}/.venv/bin:$PATH KURMA_TEST_RECORD=/results/ran KURMA_TEST_VM=1
export PATH KURMA_TEST_RECORD KURMA_TEST_VM
exec sh tests/host python -m pytest -p tests.vm.ran --junitxml=/results/junit.xml --basetemp=/tmp/pytest \\
	-o console_output_style=classic -o testpaths={files} -m vm --reruns {reruns} \\
	--timeout 0 -o faulthandler_timeout={hanging} -o faulthandler_exit_on_timeout=true {arguments}
"""


def main(arguments):
    start = time.monotonic()
    directory = f"{PROJECT}/.dev/vm"
    os.makedirs(directory, exist_ok=True)
    try:
        if platform.machine() != "x86_64":
            raise Failing("the virtual machine is made for x86_64 alone; this host is none")
        with _alone(directory):
            machine = Machine(packages.kernel(directory), directory)
            expected = _collected(directory, arguments)
            for left in reversed(range(_RERUNS + 1)):
                _make(machine, directory, arguments, expected)
                print(f"vm: Linux {machine.version}, made in {time.monotonic() - start:.0f} s", file=sys.stderr)
                try:
                    verdict.check(machine.run(_PATIENCE), expected)
                    break
                except Failing as error:
                    if not left:
                        raise
                    _tell(error, directory)
                    print("vm: failed and runs again, in a new machine", file=sys.stderr)
    except Failing as error:
        _tell(error, directory)
        return 1
    print(f"vm: {len(expected)} tests ran in it; all of it took {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0


def _tell(error, directory):
    if error.tail:
        print(f"vm: the last of its console:\n{error.tail}", file=sys.stderr)
        print(f"vm: all of it: {directory}/console.log", file=sys.stderr)
    print(f"vm: {error}", file=sys.stderr)


@contextlib.contextmanager
def _alone(directory):
    with open(f"{directory}/lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failing(f"another ./dev test-vm of this checkout runs: {directory}/lock is held") from None
        yield


def _make(machine, directory, arguments, expected):
    """The machine's disk. Where no paths are given, files without a marked test are not even looked at there: to
    collect all of them takes a minute."""
    files = " ".join(dict.fromkeys(test.partition("::")[0] for test in expected))
    root = f"{directory}/tree"
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    try:
        tree.build(root, PROJECT, _PROGRAMS)
        apparmor = packages.unpacked(packages.APPARMOR, directory)
        shutil.copytree(f"{apparmor}/etc", f"{root}/etc", symlinks=True, dirs_exist_ok=True)
        shutil.copy(f"{apparmor}/sbin/apparmor_parser", f"{root}/usr/sbin")
        machine.put_modules(root)
        shutil.copy(f"{_HERE}/init", f"{root}/usr/sbin/init")
        os.chmod(f"{root}/usr/sbin/init", 0o755)
        with open(f"{root}/job", "w") as file:
            file.write(
                _JOB.format(
                    project=shlex.quote(PROJECT),
                    files=shlex.quote(files),
                    reruns=_RERUNS,
                    hanging=_HANGING,
                    arguments=shlex.join(arguments),
                )
            )
        machine.make_disk(root)
    finally:
        shutil.rmtree(root)


def _collected(directory, arguments):
    """IDs of the tests that are to run there, as this host finds them."""
    path = f"{directory}/collected"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.vm.ran", "-q", "--collect-only", "-m", "vm", *arguments],
        cwd=PROJECT,
        env={**os.environ, "KURMA_TEST_RECORD": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Failing(f"cannot collect the tests: pytest: {done.stdout.strip()}{done.stderr.strip()}")
    return sorted(verdict.record(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
