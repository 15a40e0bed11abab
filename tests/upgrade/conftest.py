"""Two built versions of Kurma, each in an environment of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.installed import ROOT, install, make_clean

OLDER, NEWER = "0.0.1", "0.0.2"
#: What distinguishes the versions besides their number: by file, the text and its replacement. The older one's
#: stager cannot stop apps. The newer one has another stager image, and writes records of pods in a newer format.
DIFFERENCES = {
    OLDER: {
        "plugins/stager_default/kurma_stager_default/image.py": (
            '("app-add", "app-start", "app-stop", "app-rm", ',
            '("app-add", "app-start", "app-rm", ',
        )
    },
    NEWER: {
        "plugins/stager_default/kurma_stager_default/inside/errors.py": ("\n\n", "\n\nNEWER = True\n"),
        "kurma_core/pods/record/pod_directory.py": ("\nVERSION = 1\n", "\nVERSION = 2\n"),
    },
}


def built(directory: Path, version: str) -> Path:
    """Builds that version, and installs it. :returns: its ``kurma``."""
    source, wheels = directory / "source", directory / "wheels"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith(("docs/", "tests/", "bench/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    for name, (text, other) in DIFFERENCES[version].items():
        before = (source / name).read_text()
        assert text in before, f"{name} has no {text!r} any more"
        (source / name).write_text(before.replace(text, other, 1))
    subprocess.run([sys.executable, source / "packaging/workspace.py", version], check=True, stdout=sys.stderr)
    options = (
        "--quiet",
        "--wheel",
        "--all-packages",
        "--no-build-isolation",
        "--offline",
        "--python",
        sys.executable,
    )
    subprocess.run([os.environ["UV"], "build", *options, "--out-dir", wheels], cwd=source, check=True)
    make_clean(directory)
    install(directory, wheels, f"kurma=={version}")
    return directory / "venv/bin/kurma"


@pytest.fixture(scope="session")
def versions(tmp_path_factory):
    """The commands of the older and of the newer version."""
    assert os.geteuid() == 0
    return tuple(built(tmp_path_factory.mktemp(f"kurma-{one}"), one) for one in (OLDER, NEWER))
