"""``./dev release`` on a clone of the checkout: version, changelog, files, commit and tag."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kurma_core import VERSION
from tests.kit.command import PROGRAM
from tests.kit.registry import sha256
from tests.packaging.conftest import AUTHOR, git

ROOT = Path(__file__).parents[2]
NEW = "2.0.0"
pytestmark = [pytest.mark.root, pytest.mark.full]


def release(checkout, *words):
    return subprocess.run(
        [sys.executable, checkout / "packaging/release.py", *words, "--quick", "--into", checkout.parent / "out"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **AUTHOR, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(ROOT / ".dev/third-party")},
    )


def digests(directory):
    return {file.name: sha256(file.read_bytes()) for file in directory.iterdir()}


def test_a_release_is_prepared_and_changes_only_the_clone(checkout):
    before = git(checkout, "rev-parse", "HEAD")
    done = release(checkout, NEW)
    assert done.returncode == 0, done.stdout + done.stderr
    made = checkout.parent / "out" / NEW
    assert f"git push origin v{NEW} && twine upload {made}/dist/kurma*" in done.stdout
    assert (git(checkout, "rev-parse", "HEAD"), git(checkout, "tag")) == (before, "")
    clone = made / "kurma"
    assert git(clone, "status", "--porcelain") == ""
    assert f'VERSION = "{NEW}"' in git(clone, "show", f"v{NEW}:kurma_core/__init__.py")
    changelog = git(clone, "show", f"v{NEW}:CHANGELOG.md")
    assert re.search(rf"## Unreleased\n\n## {NEW} – \d{{4}}-\d\d-\d\d\n\n### ", changelog)
    files = {file.name for file in (made / "dist").iterdir()}
    assert {f"kurma-{NEW}-py3-none-any.whl", f"kurma-{NEW}.tar.gz", f"kurma_core-{NEW}-py3-none-any.whl"} <= files
    assert not [name for name in files if f"-{VERSION}" in name]
    # One commit, which has the records, too; a build of the tag gives the files that are published.
    assert git(clone, "log", "--format=%s", f"{before.strip()}..v{NEW}") == f"release {NEW}\n"
    assert git(clone, "ls-tree", "--name-only", f"v{NEW}:tests/golden/records").split()[-1] == NEW
    tagged = checkout.parent / "tagged"
    git(checkout.parent, "clone", "--quiet", "--branch", f"v{NEW}", clone, tagged)
    subprocess.run([sys.executable, tagged / "packaging/build.py", "--out", tagged / "dist"], check=True)
    assert digests(tagged / "dist") == digests(made / "dist")


def test_a_release_is_applied(checkout):
    done = release(checkout, NEW, "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    assert git(checkout, "rev-parse", "HEAD") == git(checkout, "rev-parse", f"v{NEW}^{{commit}}")
    again = release(checkout, NEW)
    assert again.stderr == f"dev: cannot release {NEW}: it has been released, since the tag v{NEW} exists\n"
    (checkout / "CHANGELOG.md").write_text("changed")
    again = release(checkout, "2.0.1")
    assert again.stderr.startswith("dev: cannot release: the checkout has changes\n")
    git(checkout, "checkout", "--quiet", "CHANGELOG.md")
    again = release(checkout, "2.0.1")
    assert again.stderr == "dev: cannot release 2.0.1: CHANGELOG.md lists no change below '## Unreleased'\n"
    again = release(checkout, "1.9.9")
    assert again.stderr == f"dev: cannot release 1.9.9: it is before {NEW}, the present version\n"


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        ("0.1.0", "0.1.0"),
        ("0.9.0 0.10.0", "0.10.0"),
        ("0.10.0 0.11.0", "0.10.0 0.11.0"),
        ("0.9.0 0.10.0 0.11.0", "0.10.0 0.11.0"),
        ("0.11.0rc1 0.10.0 0.11.0", "0.11.0 0.11.0rc1"),
    ],
)
def test_the_records_of_the_version_before_stay(monkeypatch, tmp_path, there, kept):
    """19.1: also if the present version has records already."""
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    from release import drop_records

    for name in there.split():
        (tmp_path / name).mkdir()
    drop_records(tmp_path, "0.11.0")
    assert sorted(os.listdir(tmp_path)) == kept.split()


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """``checked(program, **environment)``: has that Kurma looked at as an installed one of a release."""
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    from release import check_installation
    from workspace import Wrong

    (tmp_path / "kurma.json").write_text("{}")
    own = {"KURMA_DIR": str(tmp_path / "state"), "KURMA_CONFIG": str(tmp_path / "kurma.json")}

    def check(program=PROGRAM, **environment):
        try:
            check_installation(program, {**os.environ, **own, **environment})
        except Wrong as error:
            return str(error)
        return ""

    return check


def test_a_machine_that_lacks_something_prepares_a_release(checked, tmp_path):
    (tmp_path / "none").mkdir()
    none = {"SSL_CERT_FILE": str(tmp_path / "none/file"), "SSL_CERT_DIR": str(tmp_path / "none")}
    words = [PROGRAM, "info", "--check", "--format", "json"]
    done = subprocess.run(words, env={**os.environ, **none}, capture_output=True, text=True, check=False)
    assert (done.returncode, '"name": "certificates"' in done.stdout) == (1, True)
    assert checked(**none) == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("echo '[]'; exit 125", "exit code 125 of "),
        (
            """echo '[{"by": "networks/lo", "name": "plugin", "ok": false, "detail": "it fails"}]'; exit 1""",
            "kurma info --check: networks/lo plugin: it fails",
        ),
    ],
)
def test_packages_that_fail_make_no_release(checked, tmp_path, said, why):
    program = tmp_path / "kurma"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    assert checked(program).startswith(why)
