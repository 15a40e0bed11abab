"""Images are saved to files that other engines read, and that Kurma loads again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import Kurma, one_line
from tests.kit.images import archive, shell
from tests.kit.registry import BUSYBOX, OciDir, layer_tar
from tests.kit.waiting import until

pytestmark = pytest.mark.root

CONFIG = {
    "Entrypoint": ["/bin/sh", "-c", 'echo "$0 $1 as $(id -u):$(id -G) in $(pwd), $GREETING"; ls /srv/* ; exit 5'],
    "Cmd": ["from", "cmd"],
    "User": "app",
    "Env": ["PATH=/bin", "GREETING=good day"],
    "WorkingDir": "/srv/app",
    "StopSignal": "SIGQUIT",
    "ExposedPorts": {"80/tcp": {}, "8000-8003/udp": {}},
    "Volumes": {"/data": {}},
    "Labels": {"team": "a"},
    "Healthcheck": {"Test": ["CMD", "true"]},
}
FILES: dict[str, Any] = {
    "etc": None,
    "etc/passwd": b"app:x:1000:1001::/srv:/bin/sh\n",
    "etc/group": b"more:x:1002:app\n",
    "srv": None,
    "srv/app": None,
    "srv/app/kept": b"kept\n",
    "srv/app/gone": b"gone\n",
    "srv/hidden": None,
    "srv/hidden/old": b"old\n",
}
SAID = "from cmd as 1000:1001 1002 in /srv/app, good day\n/srv/app:\nkept\n\n/srv/hidden:\nnew\n"
SCHEMES = ("oci", "oci-archive", "docker-archive")


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose layers remove and hide files, in a layout."""
    layout = OciDir(tmp_path_factory.mktemp("oci"))
    applets = {f"bin/{name}": ("busybox",) for name in ("sh", "id", "ls")}
    base = layer_tar({"bin": None, "bin/busybox": BUSYBOX.read_bytes(), **applets})
    upper = layer_tar({"srv/app/.wh.gone": b"", "srv/hidden/.wh..wh..opq": b"", "srv/hidden/new": b"new\n"})
    layout.image("v1", [base, layer_tar(FILES), upper], CONFIG)
    return f"oci:{layout.path}:v1"


@pytest.fixture
def image(kurma: Kurma, layered: str) -> str:
    return kurma.out("image", "fetch", layered).strip()


def skopeo(*words: str) -> str:
    done = subprocess.run(["skopeo", "--insecure-policy", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ran(kurma: Kurma, locator: str) -> tuple[int, str]:
    done = kurma("run", "--rm", "--net", "none", locator)
    return done.returncode, done.stdout


@pytest.mark.parametrize("scheme", SCHEMES)
def test_other_engines_read_it_and_kurma_runs_it(
    kurma: Kurma, fresh: Kurma, image: str, scheme: str, tmp_path: Path
) -> None:
    saved = f"{scheme}:{tmp_path}/saved"
    name = "example.com/team/app:v2"
    digest = kurma.out("image", "save", image, f"{saved}:{name}", "--digest-file", f"{tmp_path}/digest").strip()
    assert (tmp_path / "digest").read_text() == digest
    config = json.loads(skopeo("inspect", "--config", "--raw", f"{saved}:{name}"))
    assert config["architecture"] == "amd64"
    assert config["created"] == "2024-01-02T03:04:05Z"
    found = config["config"]
    assert {key: found[key] for key in CONFIG} == CONFIG
    raw = skopeo("inspect", "--raw", f"{saved}:{name}").encode()
    if scheme == "docker-archive":
        assert json.loads(raw)["config"]["digest"] == digest
    else:
        assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == digest
    skopeo("copy", f"{saved}:{name}", f"oci:{tmp_path}/copied:v1")
    for locator in (saved, f"oci:{tmp_path}/copied:v1"):
        assert ran(fresh, locator) == (5, SAID)
    again = json.loads(fresh.out("image", "cat-manifest", fresh.out("image", "fetch", saved).strip()))
    assert again["name"] == "example.com/team/app"
    assert {"name": "version", "value": "v2"} in again["labels"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_image_gives_the_same_bytes(
    kurma: Kurma, fresh: Kurma, image: str, scheme: str, tmp_path: Path
) -> None:
    """Also on another machine, and of what was saved and loaded again."""
    digests = {kurma.out("image", "save", image, f"{scheme}:{tmp_path}/one:x/y:v1")}
    loaded = fresh.out("image", "fetch", f"{scheme}:{tmp_path}/one").strip()
    digests.add(fresh.out("image", "save", loaded, f"{scheme}:{tmp_path}/two:x/y:v1"))
    assert len(digests) == 1
    if scheme != "oci":
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_the_default_format_and_the_default_name(kurma: Kurma, image: str, tmp_path: Path) -> None:
    kurma.out("image", "save", image, "-o", f"{tmp_path}/image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        content = tar.extractfile("manifest.json")
        assert content is not None
        (entry,) = json.load(content)
        assert len(entry["Layers"]) == 3
        assert entry["RepoTags"][0].startswith("localhost/")
    kurma.out("image", "save", image, "--format", "oci", "-o", f"{tmp_path}/layout")
    assert (tmp_path / "layout/index.json").exists()
    configured = kurma.configured(tmp_path / "kurma.json", fetchers={"saves": "oci-archive"})
    configured.out("image", "save", image, "-o", f"{tmp_path}/image.tar")
    skopeo("inspect", f"oci-archive:{tmp_path}/image.tar")
    one_line(kurma("image", "save", image, "-o", "-"), "standard output is not written to", hint="./-", code=2)


def test_a_layout_keeps_its_other_images(kurma: Kurma, image: str, tmp_path: Path) -> None:
    for name in ("one", "two", "one"):
        kurma.out("image", "save", image, f"oci:{tmp_path}/layout:{name}")
    index = json.loads((tmp_path / "layout/index.json").read_text())
    names = [entry["annotations"]["org.opencontainers.image.ref.name"] for entry in index["manifests"]]
    assert names == ["two", "one"]
    assert ran(kurma, f"oci:{tmp_path}/layout:two") == (5, SAID)


@pytest.mark.parametrize("way", ["stacked", "merged"])
def test_an_image_with_dependencies(kurma: Kurma, fresh: Kurma, way: str, tmp_path: Path) -> None:
    """Each dependency is a layer; with a filter of paths, all are one."""
    kurma.out("image", "fetch", kurma.image)
    (tmp_path / "own/etc").mkdir(parents=True)
    (tmp_path / "own/etc/own").write_text("own\n")
    some: dict[str, Any] = {"pathWhitelist": ["/bin/busybox", "/bin/sh", "/bin/cat", "/etc/own"]}
    above = archive(
        str(tmp_path / "own"),
        str(tmp_path / "above.aci"),
        f"example.com/above-{way}",
        app=shell("cat /etc/own; ls /srv/www 2>/dev/null; exit 3"),
        dependencies=[{"imageName": "example.com/busybox"}],
        **(some if way == "merged" else {}),
    )
    options = ("--insecure-options=image",)
    found = kurma.out("image", "fetch", *options, above).strip()
    kurma.out("image", "save", found, f"oci:{tmp_path}/saved")
    manifest = json.loads(skopeo("inspect", "--raw", f"oci:{tmp_path}/saved:1"))
    assert len(manifest["layers"]) == (1 if way == "merged" else 2)
    assert ran(fresh, f"oci:{tmp_path}/saved") == (3, "own\n" if way == "merged" else "own\nindex.html\n")


def test_parts_that_get_lost_are_told(kurma: Kurma, tmp_path: Path) -> None:
    app = shell("true", isolators=[{"name": "resource/memory", "value": {"limit": "64Mi"}}])
    (tmp_path / "root").mkdir()
    found = kurma.out("image", "fetch", archive(f"{tmp_path}/root", f"{tmp_path}/x.aci", "example.com/x", app=app))
    done = kurma("image", "save", found.strip(), "-o", f"{tmp_path}/saved.tar")
    assert done.returncode == 0
    assert "example.com/x: an image of this format holds no isolators" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said", "hint"),
    [
        (("docker://example.com/x",), 2, "not a file", "kurma image push"),
        (("file:/tmp/x",), 2, "only fetches", None),
        (("oci:/nowhere/at/all",), 125, "cannot be written", "mkdir"),
        (("docker-archive:{}/there",), 2, "a directory", None),
        (("oci:{}/there",), 125, "not empty", "a new directory"),
        (("oci:{}/x@sha256:1",), 2, "no digest", ":NAME"),
        (("oci-archive:{}/x:UPPER/x",), 2, "not a name of an image", None),
        (("oci:{}/x:a\nb",), 2, "cannot name an image", "letters and digits"),
        (("oci-archive:{}/x:" + "a" * 400,), 2, "cannot name an image", "1 to 384"),
        (("docker-archive:{}/x:" + "a" * 300,), 2, "at most 255 characters", None),
        (("{}/x",), 2, "not SCHEME:PATH", "-o "),
        (("-o", "{}/a:b"), 2, "a colon", None),
        ((), 2, "either", None),
    ],
)
def test_what_cannot_be_says_so(
    kurma: Kurma, image: str, words: tuple[str, ...], code: int, said: str, hint: str | None, tmp_path: Path
) -> None:
    (tmp_path / "there/in").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    done = kurma("image", "save", image, *(word.format(tmp_path) for word in words))
    one_line(done, said, code=code, hint=hint)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.full
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_killed_save_leaves_nothing(kurma: Kurma, scheme: str, tmp_path: Path) -> None:
    """While the layers are packed: files without a name go with the process."""
    (tmp_path / "root").mkdir()
    with open(tmp_path / "root/large", "wb") as file:
        for _ in range(48):
            file.write(os.urandom(1 << 20))
    image = kurma.out(
        "image", "fetch", archive(f"{tmp_path}/root", f"{tmp_path}/large.aci", "example.com/large")
    ).strip()
    (tmp_path / "out").mkdir()
    running = kurma.popen("image", "save", image, f"{scheme}:{tmp_path}/out/saved")

    def packs() -> bool:
        assert running.poll() is None
        links = [
            os.readlink(one.path) for one in os.scandir(f"/proc/{running.pid}/fd") if os.path.lexists(one.path)
        ]
        return any(link.startswith(f"{tmp_path}/out/") and link.endswith("(deleted)") for link in links)

    until(packs, "a file without a name")
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert list((tmp_path / "out").iterdir()) == []
    kurma.out("image", "save", image, f"{scheme}:{tmp_path}/out/saved")
    kurma.out("image", "fetch", f"{scheme}:{tmp_path}/out/saved")
