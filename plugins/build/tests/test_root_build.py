"""Images are built by a real buildah, and run (without a network)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.kit.command import Kurma, one_line
from tests.kit.images import busybox_archive

pytestmark = pytest.mark.root

DOCKERFILE = """
FROM scratch
ARG WORD
COPY sh /bin/sh
RUN ["/bin/sh", "-c", "echo made > /made"]
ENV GREETING=$WORD
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["read x < /made; echo $GREETING $x; exit 4"]
"""
#: buildah builds by these settings in any container and virtual machine.
EVERYWHERE = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}


@pytest.fixture
def kurma(session_state: str, tmp_path: Path) -> Kurma:
    app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
    image = busybox_archive(str(tmp_path), app, {})
    return Kurma(Path(session_state), Path(session_state).with_name("kurma.json"), image)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A directory with a Dockerfile."""
    found = tmp_path / "context"
    found.mkdir()
    shutil.copy("/bin/busybox", found / "sh")
    (found / "Dockerfile").write_text(DOCKERFILE)
    return found


def storage(tmp_path: Path) -> tuple[str, ...]:
    """buildah keeps its images with the test's files."""
    return ("--root", f"{tmp_path}/images", f"--runroot={tmp_path}/run")


def test_it_is_built_and_runs(kurma: Kurma, context: Path, tmp_path: Path) -> None:
    names = ("-t", "example.com/built:1.0", "--tag=short")
    given = ("--build-arg", "WORD=hello", "--iidfile", f"{tmp_path}/iid", *names, str(context))
    done = kurma("build", *storage(tmp_path), *given, env={**EVERYWHERE, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "COMMIT" in done.stderr
    built = done.stdout.split()
    assert len(built) == 2
    # Its name finds it, too: the key of images built here signs it.
    for image in (*built, "example.com/built", "example.com/built:1.0", "localhost/short"):
        ran = kurma("run", "--rm", "--net", "none", image)
        assert (ran.returncode, ran.stdout) == (4, "hello made\n"), ran.stderr
    shown = [kurma.json("image", "show", image) for image in built]
    assert [(one["name"], one["version"]) for one in shown] == [
        ("example.com/built", "1.0"),
        ("localhost/short", "latest"),
    ]
    assert [one["trust"] for one in shown] == ["local", "local"]
    (way,) = shown[0]["provenance"]
    key = (kurma.state / "build_key/fingerprint").read_text().strip()
    assert (way["locator"], way["source"], way["fingerprint"]) == ("build:example.com/built", None, key)
    assert shown[0]["layers"] == shown[1]["layers"]
    assert (tmp_path / "iid").read_text().startswith("sha256:")
    assert list(tmp_path.glob("kurma-build-*")) == []


def test_without_a_name(kurma: Kurma, context: Path, tmp_path: Path) -> None:
    (image,) = kurma.out("build", *storage(tmp_path), str(context), env=EVERYWHERE).split()
    assert kurma("run", "--rm", "--net", "none", image).stdout == "made\n"


def test_a_build_that_fails_says_so(kurma: Kurma, context: Path, tmp_path: Path) -> None:
    (context / "Dockerfile").write_text("FROM scratch\nCOPY missing /x\n")
    environment = {**EVERYWHERE, "TMPDIR": str(tmp_path)}
    done = kurma("build", *storage(tmp_path), "-t", "example.com/broken", str(context), env=environment)
    assert done.returncode not in (0, None)
    assert done.stdout == ""
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("kurma-build-*")) == []


def test_without_buildah_the_hint_names_its_package(kurma: Kurma, context: Path) -> None:
    done = kurma("build", str(context), env={"PATH": os.path.dirname(kurma.program)})
    one_line(done, "buildah is not installed", hint="apt-get install buildah")
