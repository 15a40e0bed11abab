"""What tests of the packages share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kurma_core import VERSION

#: Version of the package that another one is upgraded to.
NEWER = "99.0.0"
ROOT = Path(__file__).parents[2]
#: Wheels of other projects that Kurma requires; `./dev test` makes it.
THIRD_PARTY = ROOT / ".dev/third-party"
AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A Tester"), ("EMAIL", "tester@example.com"))
}


def git(directory, *words):
    done = subprocess.run(
        ["git", *words], cwd=directory, capture_output=True, text=True, check=False, env={**os.environ, **AUTHOR}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose last commit is the files of this one, with its tools."""
    place = tmp_path / "checkout"
    git(ROOT, "clone", "--quiet", "--shared", ROOT, place)
    changed = git(ROOT, "ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0")
    for name in filter(None, changed):
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
        else:
            (place / name).unlink()
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--allow-empty", "--message", "the present state")
    (place / ".dev").mkdir()
    for name in ("release", "third-party"):
        (place / ".dev" / name).symlink_to(ROOT / ".dev" / name)
    return place


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A directory with what ``./dev build`` makes."""
    assert THIRD_PARTY.is_dir(), "no wheels of other projects: run this by ./dev test"
    out = tmp_path_factory.mktemp("built")
    command = [sys.executable, ROOT / "packaging/build.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="session")
def dist(built, tmp_path_factory):
    """A directory with what ``./dev build --third-party dist`` makes."""
    place = tmp_path_factory.mktemp("whole") / "dist"
    shutil.copytree(built, place)
    shutil.copytree(THIRD_PARTY, place, dirs_exist_ok=True)
    return place


@pytest.fixture
def packages(checkout):
    """The Debian package of this version, and a newer one."""
    made = []
    for version in (VERSION, NEWER):
        environment = {**os.environ, "PIP_NO_INDEX": "1"}
        for words in (("workspace.py", version), ("deb.py", "--out", checkout / "out")):
            command = [sys.executable, checkout / "packaging" / words[0], *words[1:]]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            assert done.returncode == 0, done.stdout + done.stderr
        (package,) = (checkout / "out").glob(f"kurma_{version}-1_*.deb")
        made.append(package)
    return made
