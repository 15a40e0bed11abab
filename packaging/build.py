"""Builds wheels and source distributions of all distributions, and lists what they require from an index.

The build is reproducible: two builds of one commit give the same bytes. It needs no network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from workspace import ROOT, Wrong, folders, main, project, run, uv, version

#: Beside the wheels: what ``kurma`` requires from an index, with exact versions and digests.
REQUIREMENTS = "requirements.txt"


def build(out: Path, root: Path = ROOT) -> list[Path]:
    """Builds into a directory, from which it removes an earlier build.

    :returns: the wheels and the source distributions. :raises Wrong: a build fails, or a wheel is not whole.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("kurma*.whl"), *out.glob("kurma*.tar.gz"), out / REQUIREMENTS):
        old.unlink(missing_ok=True)
    seconds = run("git", "log", "-1", "--format=%ct", cwd=root).strip()
    with tempfile.TemporaryDirectory(prefix="kurma-build-") as temporary:
        copy = Path(temporary)
        _copy(root, copy)
        # Without isolation: hatchling comes from this environment, not from an index.
        options = ("--quiet", "--all-packages", "--no-build-isolation", "--offline", "--python", sys.executable)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": seconds}
        run(sys.executable, "-m", "docs.man", copy / "packaging/kurma/man", cwd=copy, env=environment)
        run(uv(), "build", *options, "--out-dir", out, cwd=copy, env=environment)
        export = ("export", "--quiet", "--offline", "--frozen", "--no-emit-workspace", "--no-dev", "--no-header")
        run(uv(), *export, "--package", "kurma", "--output-file", out / REQUIREMENTS, cwd=copy)
    (out / ".gitignore").unlink(missing_ok=True)
    built = sorted([*out.glob("kurma*.whl"), *out.glob("kurma*.tar.gz")])
    check(built, root)
    return built


def _copy(root: Path, to: Path) -> None:
    """Copies the files that git knows, or would add; and the licence into each folder of a distribution."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=root)
    for name in listed.split("\0"):
        # hatchling puts a .gitignore into source distributions.
        if not name or name.endswith(".gitignore") or not os.path.lexists(root / name):
            continue
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name, follow_symlinks=False)
    for folder in folders(to):
        if folder != to:
            shutil.copy2(root / "LICENSE", folder / "LICENSE")


def check(built: list[Path], root: Path = ROOT) -> None:
    """Checks that each distribution has a wheel and a source distribution, and that each wheel is whole.

    :raises Wrong: it is not.
    """
    files = {file.name for file in built}
    for folder in folders(root):
        name = project(folder)["name"].replace("-", "_")
        wheel, source = f"{name}-{version(root)}-py3-none-any.whl", f"{name}-{version(root)}.tar.gz"
        for one in (wheel, source):
            if one not in files:
                raise Wrong(f"the build made no {one}")
        (path,) = (file for file in built if file.name == wheel)
        with zipfile.ZipFile(path) as archive:
            found = set(archive.namelist())
        missing = {f"{name}-{version(root)}.dist-info/licenses/LICENSE"} - found
        if (folder / name).is_dir():
            missing |= {f"{name}/py.typed"} - found
        if missing:
            raise Wrong(f"{wheel} lacks {', '.join(sorted(missing))}")
        own = (name, f"{name}-{version(root)}.dist-info", f"{name}-{version(root)}.data")
        if foreign := sorted(one for one in found if one.split("/")[0] not in own):
            raise Wrong(f"{wheel} holds files that are not its own: {', '.join(foreign)}")


def download(wheels: Path, to: Path) -> None:
    """Downloads what ``kurma`` requires from an index, as wheels for this machine; keeps what an earlier download
    of the same versions left, and removes other wheels.

    :param wheels: the directory of a build. :param to: may be the same directory.
    :raises Wrong: an index or a digest fails.
    """
    wanted = (wheels / REQUIREMENTS).read_text()
    stamp = to / "downloaded.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    to.mkdir(parents=True, exist_ok=True)
    for old in to.glob("*.whl"):
        if not old.name.startswith("kurma"):
            old.unlink()
    options = ("--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes")
    run(sys.executable, "-m", "pip", "download", *options, "--dest", to, "--requirement", wheels / REQUIREMENTS)
    stamp.write_text(wanted)


def _command() -> None:
    parser = argparse.ArgumentParser(prog="./dev build", description="Build wheels and source distributions.")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "dist", help="default: dist")
    further = "also download the wheels of other projects that kurma requires"
    parser.add_argument("--third-party", metavar="DIR", type=Path, help=further)
    given = parser.parse_args()
    out = given.out.absolute()
    built = build(out)
    if given.third_party:
        download(out, given.third_party.absolute())
    print(f"built {len(built)} files of version {version()} in {out}")


if __name__ == "__main__":
    main(_command)
