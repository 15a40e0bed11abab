"""Docker and OCI images by command: from a registry, a layout, an archive (R1, R2, R3)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.acceptance.conftest import Start
from tests.kit.command import Kurma, one_line
from tests.kit.registry import BUSYBOX, OciDir, Registry, layer_tar
from tests.kit.waiting import until

pytestmark = pytest.mark.root

CONFIG = {
    "Entrypoint": ["/bin/sh", "-c", 'echo "$0 $1 as $(id -u):$(id -g) in $(pwd), $GREETING"; cat kept; exit 5'],
    "Cmd": ["from", "cmd"],
    "User": "app",
    "Env": ["PATH=/bin", "GREETING=good day"],
    "WorkingDir": "/srv/app",
}
PASSWD = b"root:x:0:0::/:/bin/sh\napp:x:1000:1001::/srv:/bin/sh\n"
SAID = "from cmd as 1000:1001 in /srv/app, good day\nkept\n"


@pytest.fixture(scope="module")
def oci(tmp_path_factory: pytest.TempPathFactory) -> OciDir:
    """Layers that add, replace, take away and hide; and an image without a command."""
    path = tmp_path_factory.mktemp("oci") / "layout"
    path.mkdir()
    layout = OciDir(path)
    applets = {f"bin/{name}": ("busybox",) for name in ("sh", "id", "cat", "ls", "echo")}
    base = layer_tar({"bin": None, "bin/busybox": BUSYBOX.read_bytes(), **applets})
    first = layer_tar(
        {
            "etc": None,
            "etc/passwd": PASSWD,
            "srv": None,
            "srv/app": None,
            "srv/app/kept": b"kept\n",
            "srv/app/gone": b"gone\n",
            "srv/hidden": None,
            "srv/hidden/old": b"old\n",
        }
    )
    second = layer_tar({"srv/app/.wh.gone": b"", "srv/hidden/.wh..wh..opq": b"", "srv/hidden/new": b"new\n"})
    layout.image("v1", [base, first, second], CONFIG)
    layout.image("silent", [base], {"Env": ["PATH=/bin"]})
    return layout


@pytest.fixture(scope="module")
def pushed(registry: Registry, oci: OciDir) -> str:
    """The registry's part of the locators."""
    for tag in ("v1", "silent"):
        registry.push(f"oci:{oci.path}:{tag}", f"team/app:{tag}")
    return f"docker://{registry.host}/team/app"


@pytest.fixture(params=["docker", "oci", "docker-archive"])
def locator(request: pytest.FixtureRequest, oci: OciDir, pushed: str, tmp_path: Path) -> str:
    if request.param == "docker":
        return f"{pushed}:v1"
    if request.param == "oci":
        return f"oci:{oci.path}:v1"
    file = tmp_path / "image.tar"
    copy = [
        "skopeo",
        "--insecure-policy",
        "copy",
        "--quiet",
        f"oci:{oci.path}:v1",
        f"docker-archive:{file}:app:v1",
    ]
    subprocess.run(copy, check=True, capture_output=True)
    return f"docker-archive:{file}"


def run(kurma: Kurma, locator: str, *words: str) -> subprocess.CompletedProcess[str]:
    return kurma("run", "--rm", "--net", "none", locator, *words)


def test_runs_as_its_configuration_says(kurma: Kurma, locator: str) -> None:
    done = run(kurma, locator)
    assert (done.returncode, done.stdout) == (5, SAID), done.stderr
    assert "Traceback" not in done.stderr


def test_arguments_take_the_place_of_cmd(kurma: Kurma, pushed: str) -> None:
    done = run(kurma, f"{pushed}:v1", "--", "mine", "too")
    assert (done.returncode, done.stdout) == (5, SAID.replace("from cmd", "mine too"))


def test_the_command_line_wins(kurma: Kurma, pushed: str) -> None:
    script = 'echo "$GREETING $(id -u) $(pwd)"; ls /srv/app /srv/hidden'
    options = ("-e", "GREETING=bye", "--user", "0", "--group", "0", "--workdir", "/srv", "--exec", "/bin/sh")
    done = kurma("run", "--rm", "--net", "none", *options, f"{pushed}:v1", "--", "-c", script)
    assert done.stdout == "bye 0 /srv\n/srv/app:\nkept\n\n/srv/hidden:\nnew\n", done.stderr


@pytest.mark.full
def test_the_same_by_every_renderer(kurma: Kurma, pushed: str) -> None:
    for renderer in ("overlay", "copy"):
        done = kurma("run", "--rm", "--net", "none", "--renderer", renderer, f"{pushed}:v1")
        assert (done.returncode, done.stdout) == (5, SAID), done.stderr


@pytest.mark.full
def test_an_image_without_a_command_says_so(kurma: Kurma, pushed: str) -> None:
    done = run(kurma, f"{pushed}:silent")
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if "plain http" not in line)
    one_line(done, "team/app", "command", hint="kurma run IMAGE -- COMMAND")
    again = kurma("run", "--rm", "--net", "none", "--exec", "/bin/echo", f"{pushed}:silent", "--", "given")
    assert again.stdout == "given\n", again.stderr
    plain = run(kurma, f"{pushed}:silent", "--", "/bin/echo", "words")
    assert plain.stdout == "words\n", plain.stderr


@pytest.mark.full
def test_the_second_run_fetches_nothing(kurma: Kurma, pushed: str) -> None:
    assert run(kurma, f"{pushed}:v1").stdout == SAID
    before = kurma.traces()
    done = run(kurma, f"{pushed}:v1")
    assert (done.returncode, done.stdout, done.stderr) == (5, SAID, ""), "the registry was spoken to"
    assert kurma.traces() == before
    assert run(kurma, f"{pushed}:v1", "--").stdout == SAID


def test_the_second_run_needs_no_registry(kurma: Kurma, tmp_path: Path, oci: OciDir) -> None:
    from tests.kit.registry import running_registry

    with running_registry(tmp_path / "registry") as registry:
        registry.push(f"oci:{oci.path}:v1", "short/lived:v1")
        locator = f"docker://{registry.host}/short/lived:v1"
        assert run(kurma, locator).returncode == 5
    assert run(kurma, locator).stdout == SAID
    done = kurma("run", "--rm", "--pull", "always", locator)
    assert done.returncode == 125
    assert "refused" in done.stderr


def test_what_is_known_of_it(kurma: Kurma, pushed: str) -> None:
    identity = kurma.out("image", "fetch", f"{pushed}:v1").strip()
    image = kurma.json("image", "show", identity)
    assert (image["trust"], image["version"], len(image["layers"])) == ("digest", "v1", 3)
    assert image["provenance"][-1]["locator"] == f"{pushed}:v1"
    assert json.loads(kurma.out("image", "cat-manifest", identity))["app"]["workingDirectory"] == "/srv/app"
    assert run(kurma, identity[:24]).stdout == SAID


@pytest.fixture
def short(kurma: Kurma, pushed: str, registry: Registry, tmp_path: Path) -> Kurma:
    """Short names mean Docker Hub, and the registry is a mirror of it."""
    known = json.loads(kurma.config.read_text())
    registries = {"mirrors": {"docker.io": [registry.host]}}
    return kurma.configured(tmp_path / "kurma.json", **known, short_names="docker.io", registries=registries)


def test_short_names(short: Kurma, tmp_path: Path) -> None:
    """19.3: in every place where an image is named; a command of an earlier name finds the image of the store."""
    assert (run(short, "team/app:v1").returncode, run(short, "team/app:v1").stdout) == (5, SAID)
    assert run(short, "team/app:v1", "--", "mine", "too").stdout == SAID.replace("from cmd", "mine too")
    came = "docker://docker.io/team/app:v1"
    (image,) = (one for one in short.json("image", "list") if one["provenance"][-1]["locator"] == came)
    for name in ("team/app:v1", "docker.io/team/app:v1"):
        assert short.out("image", "fetch", "--pull", "never", name).strip() == image["id"]
        assert short.json("image", "show", name)["id"] == image["id"]
    made = short.out("create", "--net", "none", "--name", "made", "team/app:v1").strip()
    assert short.json("show", made)["apps"]["app"]
    file = tmp_path / "pod.yml"
    file.write_text("apps: [{name: one, image: 'team/app:v1'}]\n")
    assert short("run", "--rm", "--net", "none", "--pod", str(file)).stdout == SAID
    refused = short("image", "rm", "team/app:v1")
    assert "a pod uses it" in refused.stderr
    short.out("rm", made)
    short.out("image", "rm", "team/app:v1")
    assert "did you mean" in short("image", "show", "team/app:v1").stderr


def test_a_short_name_in_a_running_pod(short: Kurma, background: Start) -> None:
    """19.3"""
    background("up", by=short)
    short.out("app", "add", "up", "--start", "--name", "two", "--exec", "/bin/echo", "team/app:v1", "hello")
    until(lambda: "hello" in short("logs", "up/two").stdout, "the second app writes")
    short.out("rm", "--force", "up")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (
            "alpine",
            "did you mean docker://docker.io/library/alpine? `short_names: docker.io` in kurma.yml makes alpine",
        ),
        ("docker.io/library/alpine", "if docker.io is a registry: docker://docker.io/library/alpine"),
        ("localhost:5000/x", "if localhost:5000 is a registry: docker://localhost:5000/x"),
        ("localhost:5000/x:1", "if localhost:5000 is a registry: docker://localhost:5000/x:1"),
        ("team/app@sha256:" + "0" * 64, "did you mean docker://docker.io/team/app@sha256:" + "0" * 64),
    ],
)
def test_the_address_that_a_name_may_mean(kurma: Kurma, name: str, meant: str) -> None:
    """19.3"""
    for words in (("run", "--rm"), ("create",), ("image", "fetch"), ("image", "show"), ("run", "--pull", "never")):
        done = kurma(*words, name)
        one_line(done, name.partition("@")[0], code=125 if done.returncode == 125 else 2, hint=meant)


def test_short_names_of_nobody(kurma: Kurma, tmp_path: Path) -> None:
    """19.3: a mistake in the configuration is found when it is checked."""
    for value, said in (("https://example.com", "no fetcher knows short names of"), ("nosch://x", "nosch")):
        wrong = kurma.configured(tmp_path / "kurma.json", short_names=value)
        done = wrong("config", "check")
        assert done.returncode == 125
        assert f"{wrong.config}: short_names: " in done.stderr
        assert said in done.stderr
