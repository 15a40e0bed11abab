"""``kurma plugins new``: the package that it makes works as it is (18)."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv

import pytest

from kurma_core.config import load
from kurma_core.config.schema import KINDS
from kurma_core.hookspecs import CONTRACT, GROUPS
from kurma_core.plugins.scaffold import make_package
from tests.integration.daemon.test_root_reload import QUIET, Place
from tests.kit.command import Kurma
from tests.kit.installed import ROOT, build, install, pip, uninstall
from tests.kit.waiting import until
from tests.test_floors import PUBLIC, imports


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


PRINTED = """
kurma-network-cable/README.md
kurma-network-cable/kurma.yml
kurma-network-cable/kurma_network_cable/__init__.py
kurma-network-cable/kurma_network_cable/plugin.py
kurma-network-cable/pyproject.toml
kurma-network-cable/tests/test_cable.py
# next:
cd kurma-network-cable
pip install --editable . 'kurma-core[testing]'
sudo python -m pytest --kurma-host
sudo install -D -m 644 kurma.yml /etc/kurma/kurma.d/cable.yml
kurma daemon reload  # if kurmad runs
kurma plugins list
"""


def test_it_prints_files_and_commands(run_kurma, tmp_path):
    assert run_kurma("plugins new network cable") == (0, PRINTED.lstrip(), "")
    for path in PRINTED.partition("#")[0].split():
        assert (tmp_path / path).is_file()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_complete(kind, tmp_path):
    """No placeholder is left, the package declares entry and contract, and its kurma.yml is one."""
    made = make_package(kind, "my-own")
    directory = tmp_path / made.directory
    texts = {path: (directory / path).read_text() for path in made.files}
    for path, text in texts.items():
        assert "@" not in path
        assert not {word for word in text.split("@")[1::2] if word.isupper()}, path
    one = kind.removesuffix("s")
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["name"] == f"kurma-{one}-my-own"
    assert project["entry-points"] == {
        f"kurma.{kind}": {"my-own": f"kurma_{one}_my_own.plugin"},
        "kurma.contract": {str(CONTRACT): f"kurma_{one}_my_own.plugin"},
    }
    assert f"def {GROUPS[f'kurma.{kind}']}() -> Driver:" in texts[f"kurma_{one}_my_own/plugin.py"]
    assert texts["kurma.yml"] in texts["README.md"]
    assert load(str(directory / "kurma.yml")).plugin(kind, "my-own").enabled


#: What `from PACKAGE import MODULE` names besides the module.
PACKAGES = {"kurma_core.appc", "kurma_core.trees"}


@pytest.mark.parametrize("kind", KINDS)
def test_they_import_the_public_face(kind, tmp_path):
    make_package(kind, "box", "made")
    found = [item.module for file in (tmp_path / "made").rglob("*.py") for item in imports(file)]
    assert f"kurma_testing.{kind}" in found
    core = {item for item in found if item.startswith("kurma_core.")}
    assert "kurma_core.hookspecs.hookimpl" in core
    # Each is a module, or a name in one.
    public = {f"kurma_core.{name}" for name in PUBLIC} | {"kurma_core.api.host"}
    assert {item for item in core if item not in public and item.rpartition(".")[0] not in public} <= PACKAGES


@pytest.mark.full
def test_their_types_are_checked(tmp_path):
    """Strictly, against the types of the core."""
    for kind in KINDS:
        make_package(kind, "box")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache"]
    done = subprocess.run([*mypy, *tmp_path.glob("*/kurma_*")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_formatted_and_checked(kind):
    made = make_package(kind, "box")
    ruff = [sys.executable, "-m", "ruff"]
    config = ("--config", ROOT / "pyproject.toml", "--no-cache", ".")
    # S101: the tests assert. SIM115: a fetcher's reader is closed by its caller.
    for words in (("format", "--check", *config), ("check", "--extend-ignore", "S101,SIM115", *config)):
        done = subprocess.run([*ruff, *words], capture_output=True, text=True, check=False, cwd=made.directory)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_stager_reads_json_as_the_example_does():
    path = "opt/stager/json.awk"
    make_package("stagers", "box", "made")
    example = (ROOT / "examples/stager_shell" / path).read_text()
    with open(f"made/kurma_stager_box/rootfs/{path}") as made:
        assert made.read() == example


def test_words_of_the_command_line(run_kurma, tmp_path):
    """The kind in the plural, another directory, another distribution."""
    code, out, _ = run_kurma(f"plugins new fetchers s3+http --directory {tmp_path}/a --distribution Acme.S3")
    assert code == 0
    assert f"cd {tmp_path}/a\n" in out
    project = tomllib.loads((tmp_path / "a/pyproject.toml").read_text())["project"]
    assert project["name"] == "Acme.S3"
    assert project["entry-points"]["kurma.fetchers"] == {"s3+http": "acme_s3.plugin"}
    assert (tmp_path / "a/acme_s3/plugin.py").exists()


NAME = "a name has the letters a to z, digits, and - between them; it begins with a letter"
SCHEME = "a name has the letters a to z, digits, and - and + between them; it begins with a letter"
OTHER = "choose another name"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("fetcher Box", "cannot make fetcher plugin 'Box': wrong name", SCHEME),
        ("fetcher a_b", "cannot make fetcher plugin 'a_b': wrong name", SCHEME),
        ("network a+b", "cannot make network plugin 'a+b': wrong name", NAME),
        ("network 9p", "cannot make network plugin '9p': wrong name", NAME),
        ("command ../x", "cannot make command plugin '../x': wrong name", NAME),
        ("service x-", "cannot make service plugin 'x-': wrong name", NAME),
        (
            "fetcher upload",
            "cannot make fetcher plugin 'upload': Kurma calls images of its own upload:…",
            OTHER,
        ),
        (
            "command run",
            "cannot make command plugin 'run': Kurma has a command run, or suggests another one for it",
            OTHER,
        ),
        (
            "fetcher docker",
            "cannot make fetcher plugin 'docker': kurma-fetch-docker, which is installed, has that name",
            OTHER,
        ),
        ("stager null", "cannot make stager plugin 'null': YAML reads null as a value", OTHER),
        (
            "observer box --distribution a/b",
            "cannot make distribution 'a/b': wrong name",
            "for example: kurma-cable",
        ),
        ("observer box --distribution json", "cannot make distribution 'json': there is a module json", OTHER),
        ("command box --distribution typer", "cannot make distribution 'typer': there is a module typer", OTHER),
        ("command box --distribution PyYAML", "cannot make distribution 'PyYAML': it is installed", OTHER),
        ("isolatr box", "unknown kind of plugin 'isolatr'", f"did you mean isolators? kinds: {', '.join(KINDS)}"),
    ],
)
def test_wrong_words(run_kurma, tmp_path, words, message, hint):
    before = sorted(os.listdir(tmp_path))
    assert run_kurma(f"plugins new {words}") == (2, "", f"kurma: {message}\n  hint: {hint}\n")
    assert sorted({*before, "state"}) == sorted({*os.listdir(tmp_path), "state"})


def test_a_directory_that_exists_is_left_alone(run_kurma, tmp_path):
    (tmp_path / "mine").mkdir()
    assert run_kurma("plugins new service box --directory mine") == (
        125,
        "",
        "kurma: cannot make mine: File exists\n  hint: name another directory: --directory DIR\n",
    )
    assert os.listdir(tmp_path / "mine") == []


def test_nothing_is_left_after_a_failure(run_kurma, tmp_path):
    """Here the paths in the package are too long, the directory's is not."""
    parent = os.path.join(tmp_path, *["x" * 200] * 30)
    parent = parent[: 4050 - 4050 % 10].rstrip("/")
    os.makedirs(parent)
    code, out, err = run_kurma(f"plugins new service box --directory {parent}/{'y' * 20}")
    assert (code, out) == (125, "")
    assert err.startswith("kurma: cannot write /")
    assert err.endswith("File name too long\n")
    assert os.listdir(parent) == []


@pytest.fixture
def cleanly(clean, tmp_path):
    """``cleanly("kurma", …)`` runs a program of the clean environment; its output."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "200"}

    def run(program, *words, **options):
        done = subprocess.run(
            [clean / "venv/bin" / program, *words],
            capture_output=True,
            text=True,
            check=False,
            env=environment | {name: os.environ[name] for name in ("KURMA_TEST_HOST",) if name in os.environ},
            **options,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.root
@pytest.mark.parametrize(
    "kind", [kind if kind == "isolators" else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]
)
def test_it_works_as_it_is(kind, clean, wheels, cleanly, tmp_path):
    """Made, built, installed, tested, listed, uninstalled, beside the core alone."""
    one = kind.removesuffix("s")
    distribution = f"kurma-{one}-box"
    cleanly("kurma", "plugins", "new", one, "box", cwd=tmp_path)
    source = tmp_path / distribution
    build(tmp_path / "wheels", source)
    install(clean, tmp_path / "wheels", "--find-links", wheels, distribution, "kurma-core[testing]")
    try:
        # -P: the wheel's modules are tested, not those of the directory.
        tests = ("-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:anyio", "-p", "no:cacheprovider")
        out = cleanly("python", "-P", *tests, "--kurma-host", cwd=source)
        assert " passed" in out
        (tmp_path / "state").mkdir(mode=0o700)
        kurma = ("kurma", "--dir", tmp_path / "state", "--config", source / "kurma.yml")
        (row,) = json.loads(cleanly(*kurma, "plugins", "list", "--format", "json", cwd="/"))
        assert (row["kind"], row["name"], row["distribution"]) == (kind, "box", distribution)
        assert (row["status"], row["reason"]) == ("ok", "")
        if kind == "commands":
            assert cleanly(*kurma, "box", "--json", cwd="/") == "[]\n"
    finally:
        uninstall(clean, distribution)
    (tmp_path / "kurma.yml").write_text("")
    kurma = ("kurma", "--dir", tmp_path / "state", "--config", tmp_path / "kurma.yml")
    assert json.loads(cleanly(*kurma, "plugins", "list", "--format", "json", cwd="/")) == []


@pytest.fixture
def place(tmp_path):
    """A kurmad beside whose plugins pip can install others: in an environment that is its ``PYTHONPATH``."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    kurma = Kurma(tmp_path / "state", tmp_path / "kurma.yml", image="")
    kurma.environment |= {"PYTHONPATH": str(packages)}
    found = Place(kurma, tmp_path / "kurma.yml", tmp_path / "kurmad.log", None)
    yield found
    found.stop()


@pytest.mark.full
@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_its_life_beside_a_kurmad_that_runs(kind, place, tmp_path):
    """18: installed, listed, reloaded, upgraded, broken, mended, uninstalled, as write_a_plugin.md says."""
    distribution = f"kurma-{kind.removesuffix('s')}-box"
    make_package(kind, "box", "made")
    module = next((tmp_path / "made").glob("kurma_*/plugin.py"))
    for version, last in (("0.1.0", ""), ("0.2.0", ""), ("0.3.0", "raise RuntimeError('no way')\n")):
        project = tmp_path / "made/pyproject.toml"
        project.write_text(re.sub('(?m)^version = ".*"$', f'version = "{version}"', project.read_text()))
        module.write_text(module.read_text() + last)
        build(tmp_path / "wheels", tmp_path / "made")

    def put(version):
        install(tmp_path, tmp_path / "wheels", "--no-deps", f"{distribution}=={version}")

    def told(version):
        """Status and reason of its row in the listing."""
        (found,) = [one for one in place.kurma.json("plugins", "list") if one["distribution"] == distribution]
        assert (found["kind"], found["name"], found["version"]) == (kind, "box", version)
        return found["status"], found["reason"]

    def configure(text):
        place.config.write_text(f"{json.dumps(QUIET)[1:-1]}\n{text}")

    plugin, works = f"plugin {kind}/box: {distribution}", "running" if kind == "services" else "ok"
    configure("")
    place.start()
    put("0.1.0")
    assert told("0.1.0") == ("found", "kurmad does not see it: kurma daemon reload")
    configure((tmp_path / "made/kurma.yml").read_text())
    assert f"{plugin} 0.1.0 is new" in place.reload()
    until(lambda: told("0.1.0") == (works, ""), lambda: str(told("0.1.0")))
    if kind == "commands":
        assert place.kurma.out("box", "--json") == "[]\n"

    put("0.2.0")
    outdated = "0.2.0 is installed, 0.1.0 is loaded: restart kurmad"
    assert told("0.2.0") == ("outdated", outdated)
    assert place.reload() == [f"{plugin} 0.1.0 → {distribution} 0.2.0: {outdated}"]
    assert told("0.2.0") == ("outdated", outdated)
    place.stop()
    place.log.write_text("")
    place.start()
    until(lambda: told("0.2.0") == (works, ""), lambda: str(told("0.2.0")))

    put("0.3.0")
    place.stop()
    place.log.write_text("")
    place.start()
    until(lambda: told("0.3.0")[0] == "failed", lambda: str(told("0.3.0")))
    broken = f"of {distribution} 0.3.0 is broken: RuntimeError: no way"
    assert told("0.3.0")[1].endswith(broken)
    if kind in ("networks", "renderers", "stagers"):  # the configuration uses it
        assert any(broken in line for line in place.refused())
    else:
        (line,) = place.reload()
        assert line.startswith(f"{plugin} 0.3.0: left out: ")
        assert line.endswith(broken)
    assert place.kurma.json("list") == []

    put("0.2.0")
    assert place.reload() == [f"{plugin} 0.3.0 → {distribution} 0.2.0: works now"]
    until(lambda: told("0.2.0") == (works, ""), lambda: str(told("0.2.0")))
    configure("")
    uninstall(tmp_path, distribution)
    assert f"{plugin} 0.2.0 → uninstalled" in place.reload()
    assert not [one for one in place.kurma.json("plugins", "list") if one["name"] == "box"]


@pytest.mark.full
@pytest.mark.root
def test_the_stager_passes_the_check_of_stagers(tmp_path):
    """Beside Kurma's own plugins: the check's pods join networks."""
    make_package("stagers", "box", "made")
    build(tmp_path / "wheels", tmp_path / "made")
    pip("install", "--quiet", "--no-index", "--no-deps", "--target", "site", *(tmp_path / "wheels").iterdir())
    kurma = Kurma(tmp_path / "state", tmp_path / "made/kurma.yml", image="")
    kurma.environment |= {"PYTHONPATH": str(tmp_path / "site")}
    checked = kurma.out("stager", "check", "box")
    assert " 0 do not, " in checked
    for line in ("app.walls", "layers.untouched", "run.where", "attach.output", "end.left-behind", "stop.bounded"):
        assert f"ok    {line} " in checked
