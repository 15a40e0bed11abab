"""Wheels of ``./dev build``, installed without a network by pip, pipx and ``uv tool``, and used; README."""

import os
import shlex
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest

from kurma_core import VERSION
from tests.docs.blocks import clean_up, run_page
from tests.docs.pages import DOCS
from tests.kit.command import Kurma, one_line
from tests.kit.images import busybox_archive
from tests.kit.registry import sha256
from tests.packaging.conftest import THIRD_PARTY

ROOT = Path(__file__).parents[2]
#: pipx and twine; `./dev test` makes it.
TOOLS = ROOT / ".dev/release/bin"

pytestmark = pytest.mark.root


def run(*words, **environment):
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.full
def test_two_builds_give_the_same_bytes(built, tmp_path):
    run(sys.executable, ROOT / "packaging/build.py", "--out", tmp_path)
    first, second = ({file.name: sha256(file.read_bytes()) for file in one.iterdir()} for one in (built, tmp_path))
    assert len(first) > 30
    assert first == second


@pytest.fixture
def offline(built, tmp_path):
    """Settings of installers: the wheels are all there is."""
    settings = tmp_path / "uv.toml"
    settings.write_text("no-index = true\n")
    return {
        "PIP_NO_INDEX": 1,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": f"{built} {THIRD_PARTY}",
        "PIPX_HOME": tmp_path / "pipx",
        "PIPX_BIN_DIR": tmp_path / "bin",
        "PIPX_MAN_DIR": tmp_path / "man",
        "PIPX_DISABLE_SHARED_LIBS_AUTO_UPGRADE": 1,
        "UV_CONFIG_FILE": settings,
        "UV_FIND_LINKS": f"{built},{THIRD_PARTY}",
        "UV_CACHE_DIR": tmp_path / "cache",
        "UV_TOOL_DIR": tmp_path / "tools",
        "UV_TOOL_BIN_DIR": tmp_path / "bin",
        "VIRTUAL_ENV": "",
    }


def by_pip(directory, offline, *what):
    run(sys.executable, "-m", "venv", directory / "venv")
    run(directory / "venv/bin/pip", "install", "--quiet", *what, **offline)
    return directory / "venv/bin"


def by_pipx(directory, offline, *what):
    run(TOOLS / "pipx", "install", "--quiet", "--python", sys.executable, *what, **offline)
    return directory / "bin"


def by_uv(directory, offline, *what):
    run(os.environ["UV"], "tool", "install", "--quiet", "--python", sys.executable, *what, **offline)
    return directory / "bin"


@contextmanager
def installed(tmp_path, program):
    """The installed command, with a state directory of its own, and an image whose app is ``/bin/sh``.

    Pods and bridges are removed at the end.
    """
    config = tmp_path / "kurma.json"
    config.write_text("{}")
    image = busybox_archive(str(tmp_path), {"exec": ["/bin/sh"], "user": "0", "group": "0"})
    kurma = Kurma(tmp_path / "state", config, image, str(program))
    try:
        yield kurma
    finally:
        clean_up(kurma)


@pytest.mark.parametrize(
    "installer",
    [by_pip, pytest.param(by_pipx, marks=pytest.mark.full), pytest.param(by_uv, marks=pytest.mark.full)],
)
def test_kurma_is_installed_whole(tmp_path, offline, installer):
    bin = installer(tmp_path, offline, "kurma")
    with installed(tmp_path, bin / "kurma") as kurma:
        assert VERSION in kurma.out("version")
        assert run(bin / "kurmad", "--help")
        # uv makes no links to manual pages.
        manual = {by_pip: tmp_path / "venv/share/man", by_pipx: tmp_path / "man"}.get(installer)
        assert manual is None or (manual / "man1/kurma-run.1").read_text().startswith('.TH "KURMA\\-RUN" 1')
        rows = kurma.json("plugins", "list")
        assert {row["status"] for row in rows if row["kind"] != "services"} == {"ok"}
        assert {row["distribution"] for row in rows} == plugins()
        assert {row["version"] for row in rows} == {VERSION}
        done = kurma.run("echo hello", net=None)
        assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def plugins():
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["plugins"])


@pytest.mark.full
def test_the_core_stays_without_its_programs_when_kurma_is_uninstalled(tmp_path, offline):
    """Two distributions have the programs, so pip removes them; installing the core anew brings them back."""
    bin = by_pip(tmp_path, offline, "kurma")
    run(bin / "pip", "uninstall", "--quiet", "--yes", "kurma", **offline)
    assert not (bin / "kurma").exists()
    assert run(bin / "python", "-c", "import kurma_core; print(kurma_core.VERSION)") == f"{VERSION}\n"
    run(bin / "pip", "install", "--quiet", "--force-reinstall", "--no-deps", "kurma-core", **offline)
    assert VERSION in run(bin / "kurma", "version")


def test_the_core_alone_names_the_package_to_install(tmp_path, offline):
    bin = by_pip(tmp_path, offline, "kurma-core")
    config = tmp_path / "kurma.json"
    config.write_text("{}")
    kurma = Kurma(tmp_path / "state", config, "", str(bin / "kurma"))
    pip = f"{bin}/pip install --no-index --find-links dist"
    everything = f"; all default plugins: {pip} kurma"
    for words, message, package in (
        (("run", "docker://localhost/x"), "stager default is not installed", "kurma-stager-default"),
        (
            ("image", "fetch", "docker://localhost/x"),
            "no fetcher plugin 'docker' is installed",
            "kurma-fetch-docker",
        ),
        (("image", "fetch", "example.com/x"), "no plugin finds images by name (fetcher appc)", "kurma-fetch-http"),
    ):
        one_line(kurma(*words), message, hint=f"{pip} {package}{everything}")
    config.write_text('{"plugins": {"packages": {"stagers/mine": "kurma-stager-mine"}}, "stager": "mine"}')
    one_line(kurma("run", "./x.aci"), "stager mine is not installed", hint=f"{bin}/pip install kurma-stager-mine")
    assert kurma.json("list") == []


@pytest.mark.parametrize(
    ("installer", "command"),
    [
        (by_pip, "{bin}/pip install"),
        pytest.param(by_pipx, "pipx inject", marks=pytest.mark.full),
        pytest.param(by_uv, "uv tool install", marks=pytest.mark.full),
    ],
)
def test_the_hint_is_for_the_installer_and_asks_no_index(tmp_path, offline, dist, monkeypatch, installer, command):
    bin = installer(tmp_path, offline, "kurma-core")
    config = tmp_path / "kurma.json"
    config.write_text("{}")
    done = Kurma(tmp_path / "state", config, "", str(bin / "kurma"))("run", "./x.aci")
    hint = done.stderr.splitlines()[1].removeprefix("  hint: ").partition(";")[0]
    assert hint.startswith(command.format(bin=bin)), done.stderr
    assert "--no-index" in hint
    program, *words = shlex.split(hint)
    # Typed in the clone, without settings of the test's own that name the wheels.
    monkeypatch.chdir(dist.parent)
    settings = ("PIP_NO_INDEX", "PIP_FIND_LINKS", "UV_CONFIG_FILE", "UV_FIND_LINKS")
    plain = {name: value for name, value in offline.items() if name not in settings}
    run({"pipx": TOOLS / "pipx", "uv": os.environ["UV"]}.get(program, program), *words, **plain)
    assert "stagers" in {
        row["kind"] for row in Kurma(tmp_path / "state", config, "", str(bin / "kurma")).json("plugins", "list")
    }


@pytest.fixture
def empty_opt(tmp_path):
    """``/opt`` of the test's own, in which README makes an environment."""
    own = tmp_path / "opt"
    own.mkdir()
    run("mount", "--bind", own, "/opt")
    yield
    run("umount", "--lazy", "/opt")


@pytest.mark.usefixtures("empty_opt")
@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", pytest.param(DOCS / "howto/install.md", marks=pytest.mark.full)],
    ids=["README", "install"],
)
def test_the_blocks_of_a_page_do_what_it_shows(tmp_path, dist, page):
    run_page(page, tmp_path / "page", dist, PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS="")
