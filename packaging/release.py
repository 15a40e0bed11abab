"""Prepares a release: ``./dev release VERSION``.

It works in a clone of the checkout, so that a failed attempt does not change the checkout: version, changelog,
records, commit, tests, artefacts, checks of the artefacts, and tag. There is one commit, so that a build of the
tag gives the published files. ``--apply`` then brings the commit and the tag into the checkout. Publishing is left
to a person: the command prints what to run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from build import build, download
from records import GOLDEN, write
from workspace import ROOT, Wrong, main, names, order, run, version, write_version

_CHANGELOG = "CHANGELOG.md"
_UNRELEASED = "## Unreleased\n"
#: Checks of the host that only the packages make fail: a plugin fails, or a program that a package brings.
_OF_PACKAGES = ("plugin", "interpreter", "spawner")


def check_checkout(new: str, root: Path) -> None:
    """:raises Wrong: a release cannot begin from this checkout."""
    if order(new) < order(version(root)):
        raise Wrong(f"cannot release {new}: it is before {version(root)}, the present version")
    if run("git", "status", "--porcelain", cwd=root):
        raise Wrong("cannot release: the checkout has changes", "commit them: git status shows them")
    if run("git", "tag", "--list", f"v{new}", cwd=root):
        raise Wrong(f"cannot release {new}: it has been released, since the tag v{new} exists")


def close_changelog(text: str, new: str, date: str) -> str:
    """Names the unreleased changes by the version, below an empty list of unreleased ones.

    :raises Wrong: no change is listed.
    """
    before, found, after = text.partition(_UNRELEASED)
    changes = re.split(r"(?m)^## ", after)[0]
    if not found or "- " not in changes:
        raise Wrong(f"cannot release {new}: {_CHANGELOG} lists no change below {_UNRELEASED.strip()!r}")
    return f"{before}{_UNRELEASED}\n## {new} – {date}\n{after}"


def install(out: Path, third_party: Path, new: str, scratch: Path) -> tuple[Path, dict[str, str]]:
    """Installs the wheels in a new environment below ``scratch``, without a network.

    :returns: its ``kurma``, and environment variables for it: a state directory of its own.
    :raises Wrong: pip fails, or finds that a requirement is not met.
    """
    environment = scratch / "environment"
    run(sys.executable, "-m", "venv", environment)
    offline = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": f"{out} {third_party}",
        "KURMA_DIR": str(scratch / "state"),
        "KURMA_CONFIG": str(scratch / "kurma.json"),
    }
    (scratch / "kurma.json").write_text("{}")
    pip = (environment / "bin/pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", f"kurma=={new}", env=offline)
    run(*pip, "check", env=offline)
    return environment / "bin/kurma", offline


def check_artefacts(out: Path, third_party: Path, new: str, scratch: Path) -> None:
    """Has twine read each file; installs the wheels in a new environment, and uses them.

    :raises Wrong: one of it fails.
    """
    files = sorted(file for file in out.iterdir() if file.name.endswith((".whl", ".tar.gz")))
    run(ROOT / ".dev/release/bin/twine", "check", "--strict", *files)
    program, environment = install(out, third_party, new, scratch)

    def kurma(*words: object) -> str:
        return run(program, *words, env=environment)

    if new not in kurma("version"):
        raise Wrong(f"kurma version of the wheels does not print {new}")
    root = scratch / "root/bin"
    root.mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "busybox")
    image = scratch / "busybox.aci"
    about = ("--name", "example.com/busybox", "--exec", "/bin/busybox")
    kurma("image", "build", "--from-rootfs", root.parent, *about, "-o", image)
    said = kurma("run", "--rm", "--net", "none", image, "--", "echo", "hello")
    if said != "hello\n":
        raise Wrong(f"kurma run of the wheels printed {said!r} instead of hello")
    check_installation(program, environment)


def check_installation(program: Path, environment: Mapping[str, str]) -> None:
    """Asks an installed Kurma for its checks of the host. This machine may lack something, for example Landlock or
    free space; the packages must not.

    :raises Wrong: a plugin fails, or a program that the packages bring does.
    """
    words = (program, "info", "--check", "--format", "json")
    for one in json.loads(run(*words, codes=(0, 1), env=environment)):
        if one["name"] in _OF_PACKAGES and not one["ok"]:
            raise Wrong(f"kurma info --check: {one['by']} {one['name']}: {one['detail']}")


def check_names() -> None:
    """Asks the index whether a distribution has one of our names, for a first release.

    :raises Wrong: one has.
    """
    for name in names():
        words = (sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", name)
        try:
            found = run(*words)
        except Wrong as error:
            if "No matching distribution" in str(error):
                continue
            raise
        raise Wrong(f"the name {name} is taken: {found.splitlines()[0]}")


def release(new: str, into: Path, *, quick: bool, first: bool) -> Path:
    """Prepares the release in a clone below ``into``. :returns: the clone, with commit and tag.

    :param quick: leave out the tests. :param first: ask whether the names are free.
    :raises Wrong: a step fails; the clone stays as it is, to be looked at.
    """
    check_checkout(new, ROOT)
    into.mkdir(parents=True, exist_ok=True)
    clone, out = into / "kurma", into / "dist"
    for old in (clone, out):
        shutil.rmtree(old, ignore_errors=True)
    if first:
        _say("names")
        check_names()
    run("git", "clone", "--quiet", ROOT, clone)
    _say(f"version {new}")
    write_version(new, clone)
    changelog = clone / _CHANGELOG
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    changelog.write_text(close_changelog(changelog.read_text(), new, date))
    third_party = into / "third-party"
    _say("records")
    with tempfile.TemporaryDirectory(dir=into) as temporary:
        scratch = Path(temporary)
        build(scratch / "dist", clone)
        download(scratch / "dist", third_party)
        program, _ = install(scratch / "dist", third_party, new, scratch)
        drop_records(clone / GOLDEN, new)
        write(program, clone / GOLDEN / new)
    run("git", "add", "--all", cwd=clone)
    run("git", "commit", "--quiet", "--message", f"release {new}", cwd=clone)
    if not quick:
        for tests in ("test", "test-all"):
            _say(f"./dev {tests}")
            run("./dev", tests, cwd=clone)
    _say("artefacts")
    build(out, clone)
    with tempfile.TemporaryDirectory(dir=into) as temporary:
        check_artefacts(out, third_party, new, Path(temporary))
    run("git", "tag", "--annotate", f"v{new}", "--message", f"Kurma {new}", cwd=clone)
    return clone


def drop_records(golden: Path, new: str) -> None:
    """Removes the records of all versions but the one before ``new``, whose records must be read. Those of ``new``
    may be there from an earlier attempt; they stay."""
    olds = sorted((one for one in golden.iterdir() if one.name != new), key=lambda one: order(one.name))
    for old in olds[:-1]:
        shutil.rmtree(old)


def _say(what: str) -> None:
    print(f"release: {what}", flush=True)


def _command() -> None:
    parser = argparse.ArgumentParser(prog="./dev release", description="Prepare a release; publish nothing.")
    parser.add_argument("version", metavar="VERSION", help="such as 1.2.3")
    parser.add_argument(
        "--into", metavar="DIR", type=Path, default=ROOT / ".dev/releases", help="clone and artefacts"
    )
    parser.add_argument("--quick", action="store_true", help="leave out ./dev test and ./dev test-all")
    parser.add_argument("--first", action="store_true", help="ask the index whether the names are free")
    parser.add_argument("--apply", action="store_true", help="bring commit and tag into this checkout")
    given = parser.parse_args()
    into = given.into.absolute() / given.version
    clone = release(given.version, into, quick=given.quick, first=given.first)
    tag = f"v{given.version}"
    if given.apply:
        run("git", "fetch", "--quiet", clone, "tag", tag, cwd=ROOT)
        run("git", "merge", "--quiet", "--ff-only", tag, cwd=ROOT)
    print(f"prepared {tag}: commit and tag in {ROOT if given.apply else clone}, files in {into / 'dist'}")
    print(f"to publish: git push origin {tag} && twine upload {into / 'dist'}/kurma*")


if __name__ == "__main__":
    main(_command)
