"""Debian packages that the machine needs and this host need not have: fetched and unpacked, never installed."""

import os
import shlex
import shutil
import subprocess
import sys

from tests.vm.failing import Failing

#: The kernel that Debian ships for virtual machines: cgroup v2, AppArmor, Landlock, nothing of ours.
KERNEL = "linux-image-cloud-amd64"
#: What loads profiles into AppArmor.
APPARMOR = "apparmor"


def closure(names):
    """The packages of this host that the named ones stand on, themselves and the essential ones included."""
    lines = _told("dpkg-query", "-W", "-f", "${Package} ${Essential}\n").splitlines()
    essential = [line.split()[0] for line in lines if line.endswith(" yes")]
    no = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    out = _told("apt-cache", "depends", "--recurse", "--installed", *no, *names, *essential)
    return sorted({line for line in out.splitlines() if line[:1] not in ("", " ", "|", "<")})


def kernel(cache):
    """Where the files of the newest kernel are, as :func:`unpacked`."""
    unpacked(KERNEL, cache)  # an empty package, which names the one with the kernel
    for line in _told("apt-cache", "depends", "--important", KERNEL).splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return unpacked(name, cache)
    raise Failing(f"apt knows no kernel that {KERNEL} depends on")


def unpacked(name, cache):
    """Where the files of the newest version of package ``name`` are; kept in ``cache``, older versions are not.

    Where that cannot be fetched, but some version is there, it is that one.
    """
    os.makedirs(cache, exist_ok=True)
    kept = sorted(entry for entry in os.listdir(cache) if entry.startswith(f"{name}_"))
    try:
        return _fetched(name, cache, kept)
    except Failing:
        # A new machine has no lists yet; old lists name what is no longer there.
        updated = subprocess.run(["apt-get", "update", "-q"], capture_output=True, text=True)
        try:
            return _fetched(name, cache, kept)
        except Failing as error:
            if kept:
                return f"{cache}/{kept[-1]}"
            raise Failing(f"{error}; apt-get update: {updated.stderr.strip() or 'done'}") from None


def _fetched(name, cache, kept):
    version = _candidate(name)
    place = f"{cache}/{name}_{version.replace(':', '%3a')}"
    if os.path.isdir(place):
        return place
    fresh = f"{cache}/new"
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(f"{fresh}/files")
    # By the user who runs this, since apt's own cannot write here.
    _told("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", f"{name}={version}", at=fresh)
    (archive,) = (entry for entry in os.listdir(fresh) if entry.endswith(".deb"))
    _told("dpkg-deb", "-x", f"{fresh}/{archive}", f"{fresh}/files")
    os.rename(f"{fresh}/files", place)
    for entry in (*kept, "new"):
        shutil.rmtree(f"{cache}/{entry}")
    return place


def _candidate(name):
    for line in _told("apt-cache", "policy", name).splitlines():
        key, _, value = line.strip().partition(": ")
        if key == "Candidate" and value != "(none)":
            return value
    raise Failing(f"apt has no version of the package {name}")


def _told(*argv, at=None):
    done = subprocess.run(argv, cwd=at, capture_output=True, text=True)
    if done.returncode:
        raise Failing(f"{shlex.join(argv)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


if __name__ == "__main__":
    # Machines that are made at the same time need the kernel to be there.
    kernel(sys.argv[1])
