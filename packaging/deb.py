"""Builds the Debian package: ``./dev deb``.

The package holds a virtual environment at ``/opt/kurma`` with the wheels of ``./dev build`` and of the other
projects that they require, links in ``/usr/bin``, units, configuration, completion and manual pages. It is made
for the Debian release of this machine, since some wheels are compiled for one Python. It needs no debhelper.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from build import build, download
from workspace import ROOT, Wrong, main, run, version

_DEBIAN = ROOT / "packaging/debian"
_SYSTEMD = ROOT / "packaging/systemd"
_PYTHON = "/usr/bin/python3"
_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
_DEPENDS = "gpg, gpg-agent, nftables, iptables, ca-certificates, init-system-helpers, passwd"

#: Empty directories, and their modes: credentials are readable by root alone.
_DIRECTORIES = {"etc/kurma/kurma.d": 0o755, "etc/kurma/auth.d": 0o700, "etc/kurma/trustedkeys": 0o755}

_CONTROL = """\
Package: kurma
Version: {version}-1
Architecture: {architecture}
Maintainer: The Kurma authors <kurma@example.com>
Installed-Size: {kilobytes}
Depends: {depends}
Recommends: containernetworking-plugins, apparmor
Suggests: systemd
Section: admin
Priority: optional
Description: pluggable executor of pods from App Container, Docker and OCI images
 Kurma runs pods: groups of apps that share namespaces, on plain Linux isolation
 (namespaces, overlay, cgroups, capabilities, networks). Fetchers, renderers,
 stagers, networks and isolators are plugins; this package has the default ones.
 .
 Further plugins: /opt/kurma/bin/pip install PACKAGE.
"""

#: Makes the environment at its final path, which its programs name, in a mount namespace of its own.
_ENVIRONMENT = """
mount --bind "$1/opt/kurma" /opt/kurma
/usr/bin/python3 -m venv /opt/kurma
/opt/kurma/bin/pip install --quiet --no-compile --disable-pip-version-check "kurma==$2"
for shell in bash zsh fish; do /opt/kurma/bin/kurma completion "$shell" >"$3/$shell"; done
rm -f /opt/kurma/bin/activate* /opt/kurma/bin/Activate.ps1
find /opt/kurma -name __pycache__ -prune -exec rm -rf {} +
# A compiled module records the time of its source; tar keeps whole seconds.
find /opt/kurma -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
/usr/bin/python3 -m compileall -q -j0 /opt/kurma/lib
"""


def deb(out: Path, wheels: Path, third_party: Path) -> Path:
    """Builds the package. :param wheels: what ``./dev build`` made. :param third_party: wheels of other projects.

    :raises Wrong: a step fails.
    """
    python = run(_PYTHON, "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip()
    if python != f"{sys.version_info.major}.{sys.version_info.minor}":
        raise Wrong(f"cannot build for {_PYTHON}, which is Python {python}", "unset KURMA_PYTHON, and try again")
    now = version(ROOT)
    architecture = run("dpkg", "--print-architecture").strip()
    seconds = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    with tempfile.TemporaryDirectory(prefix="kurma-deb-") as temporary:
        tree, completion = Path(temporary, "tree"), Path(temporary, "completion")
        completion.mkdir()
        _environment(tree, completion, now, f"{wheels} {third_party}", seconds)
        _files(tree, completion, now)
        control = tree / "DEBIAN"
        control.mkdir()
        major, minor = map(int, python.split("."))
        exactly = f"python3 (>= {python}), python3 (<< {major}.{minor + 1})"
        said = _CONTROL.format(
            version=now,
            architecture=architecture,
            kilobytes=sum(file.lstat().st_size for file in tree.rglob("*")) // 1024,
            depends=f"{exactly}, {_DEPENDS}",
        )
        (control / "control").write_text(said)
        (control / "conffiles").write_text("/etc/kurma/kurma.yml\n")
        (control / "md5sums").write_text(_sums(tree))
        for name in _SCRIPTS:
            _put(_DEBIAN / name, control / name, 0o755)
        package = out / f"kurma_{now}-1_{architecture}.deb"
        options = ("--root-owner-group", "-Zzstd", "--build")
        run("dpkg-deb", *options, tree, package, env={**os.environ, "SOURCE_DATE_EPOCH": seconds})
    return package


def _environment(tree: Path, completion: Path, now: str, wheels: str, seconds: str) -> None:
    (tree / "opt/kurma").mkdir(parents=True)
    environment = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": wheels,
        "SOURCE_DATE_EPOCH": seconds,
    }
    script = ("sh", "-euc", _ENVIRONMENT, "deb", tree, now, completion)
    # Removing a directory takes off what another build has mounted there, in its own mount namespace.
    lock = os.open("/opt", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        here = Path("/opt/kurma")
        made = not here.exists()
        here.mkdir(exist_ok=True)
        try:
            run("unshare", "--mount", "--propagation", "private", "--", *script, env=environment)
        finally:
            if made:
                here.rmdir()
    finally:
        os.close(lock)


def _files(tree: Path, completion: Path, now: str) -> None:
    """Puts everything into the tree but the environment."""
    (tree / "usr/bin").mkdir(parents=True)
    for program in ("kurma", "kurmad"):
        (tree / "usr/bin" / program).symlink_to(f"/opt/kurma/bin/{program}")
    for unit in sorted([*_SYSTEMD.glob("*.service"), *_SYSTEMD.glob("*.socket"), *_SYSTEMD.glob("*.timer")]):
        _put(unit, tree / "usr/lib/systemd/system" / unit.name)
    _put(_SYSTEMD / "kurma.sysusers", tree / "usr/lib/sysusers.d/kurma.conf")
    _put(_SYSTEMD / "kurma.tmpfiles", tree / "usr/lib/tmpfiles.d/kurma.conf")
    _put(_DEBIAN / "kurma.yml", tree / "etc/kurma/kurma.yml")
    for name in _DIRECTORIES:
        (tree / name).mkdir()
    for shell, place in (
        ("bash", "usr/share/bash-completion/completions/kurma"),
        ("zsh", "usr/share/zsh/vendor-completions/_kurma"),
        ("fish", "usr/share/fish/vendor_completions.d/kurma.fish"),
    ):
        _put(completion / shell, tree / place)
    manual = tree / "opt/kurma/share/man"
    for page in sorted(manual.glob("*/*")):
        _pack(page, tree / "usr/share/man" / page.relative_to(manual))
    documents = tree / "usr/share/doc/kurma"
    _put(_DEBIAN / "copyright", documents / "copyright")
    _pack(ROOT / "CHANGELOG.md", documents / "changelog")
    for directory in (tree, *(each for each in tree.rglob("*") if each.is_dir() and "opt" not in each.parts)):
        directory.chmod(_DIRECTORIES.get(str(directory.relative_to(tree)), 0o755))


def _put(source: Path, to: Path, mode: int = 0o644) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)
    to.chmod(mode)


def _pack(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    packed = to.with_name(f"{to.name}.gz")
    packed.write_bytes(gzip.compress(source.read_bytes(), mtime=0))
    packed.chmod(0o644)


def _sums(tree: Path) -> str:
    """The digests of the files, which ``dpkg -V`` compares; configuration files have theirs elsewhere."""
    lines = []
    for file in sorted(tree.rglob("*")):
        path = file.relative_to(tree)
        if file.is_file() and not file.is_symlink() and path.parts[0] not in ("DEBIAN", "etc"):
            digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
            lines.append(f"{digest}  {path}\n")
    return "".join(lines)


def _command() -> None:
    parser = argparse.ArgumentParser(prog="./dev deb", description="Build the Debian package.")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "dist", help="default: dist")
    given = parser.parse_args()
    out = given.out.absolute()
    build(out)
    third_party = ROOT / ".dev/third-party"
    download(out, third_party)
    print(f"built {deb(out, out, third_party)}")


if __name__ == "__main__":
    main(_command)
