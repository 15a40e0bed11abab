"""``kurma image`` as people and scripts see it: pages, orders, progress, and what wrong input is told."""

from __future__ import annotations

import http.server
import json
import os
import pty
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli import json_fields
from tests.kit.command import KURMA
from tests.kit.images import archive

pytestmark = pytest.mark.root

APP = {
    "exec": ["/bin/sh", "-c", "echo hi there"],
    "user": "0",
    "group": "0",
    "workingDirectory": "/tmp",
    "environment": [{"name": "A", "value": "b"}, {"name": "TWO", "value": "one\ntwo\x1b[31m"}],
    "ports": [
        {"name": "http", "protocol": "tcp", "port": 80},
        {"name": "many", "protocol": "udp", "port": 5000, "count": 10},
    ],
    "mountPoints": [{"name": "data", "path": "/data", "readOnly": True}],
    "isolators": [{"name": "resource/memory", "value": {"limit": "1G"}}],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the images' archives are."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def images(kurma_command: Any, place: Path) -> Iterator[dict[str, str]]:
    """IDs by name: a large one, a small one, and one that depends on both and keeps only a part."""
    kurma = kurma_command

    def fetch(name: str, size: int, **manifest: Any) -> str:
        root = place / name
        root.mkdir()
        (root / "content").write_bytes(os.urandom(size))
        made = archive(str(root), str(place / f"{name}.aci"), f"example.com/shown/{name}", **manifest)
        return str(kurma.out("image", "fetch", made).strip())

    found = {"large": fetch("large", 300_000)}
    found["small"] = fetch("small", 10)
    labels = [{"name": "version", "value": "1"}]
    found["top"] = fetch(
        "top",
        20_000,
        app=APP,
        annotations=[{"name": "authors", "value": "A \x1b[1mB"}],
        pathWhitelist=["/content", "/opt/content"],
        dependencies=[
            {"imageName": "example.com/shown/small", "imageID": found["small"], "kurma.io/root": "/opt"},
            {"imageName": "example.com/shown/large", "labels": labels},
        ],
    )
    yield found
    kurma("image", "rm", *found.values())


def test_what_an_image_is(kurma: Any, images: dict[str, str]) -> None:
    page = kurma.out("image", "show", "example.com/shown/top")
    facts = dict(re.findall(r"^([a-z]+(?: [a-z]+)?)  +(.*)$", page, re.MULTILINE))
    assert facts["id"] == images["top"]
    assert (facts["version"], facts["trust"], facts["last used"]) == ("1", "local", "never")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \((just now|\d+ seconds? ago)\)", facts["fetched"])
    assert facts["command"] == "/bin/sh -c 'echo hi there'"
    assert (facts["user"], facts["directory"]) == ("0:0", "/tmp")
    assert facts["ports"] == "http (80/tcp), many (5000-5009/udp)"
    assert facts["volumes"] == "data (/data, read-only)"
    assert facts["isolators"] == "resource/memory"
    assert facts["came from"].endswith("/top.aci")
    # What a stranger wrote stands in its column, and moves no cursor.
    assert "environment  A=b\n             TWO=one\n             two\\x1b[31m\n" in page
    assert re.search(r"^example\.com/shown/small +- +" + images["small"][:20] + r" +/opt$", page, re.MULTILINE)
    assert re.search(r"^example\.com/shown/large +version=1 +- +/$", page, re.MULTILINE)
    assert "KEEPS ONLY\n/content\n/opt/content\n" in page
    assert re.search(r"^ANNOTATION +VALUE\nauthors +A \\x1b\[1mB$", page, re.MULTILINE)
    assert f"LAYERS, LOWEST FIRST\n{images['top']}\n" in page
    assert "no app" in kurma.out("image", "show", images["small"])


def test_every_way_that_it_came_in_is_shown(kurma: Any, images: dict[str, str], place: Path) -> None:
    copy = place / "copy.aci"
    copy.write_bytes((place / "small.aci").read_bytes())
    assert kurma.out("image", "fetch", str(copy)).strip() == images["small"]
    page = kurma.out("image", "show", images["small"])
    found = re.findall(r"^came from +(?:file://)?(\S+)$", page, re.MULTILINE)
    assert found == [str(copy), str(place / "small.aci")], "the newest first"


def names(listing: str) -> list[str]:
    return [line.split()[1] for line in listing.splitlines()]


def test_orders_of_the_listing(kurma: Any, images: dict[str, str]) -> None:
    def order(*words: str) -> list[str]:
        listed = names(kurma.out("image", "list", "--no-legend", *words))
        return [name.rpartition("/")[2].partition(":")[0] for name in listed if "/shown/" in name]

    assert order() == order("--sort", "name") == ["large", "small", "top"]
    assert order("--sort", "size") == ["large", "top", "small"]
    assert order("--sort", "fetched")[-1] == "large"
    kurma.out("image", "render", images["small"])
    assert order("--sort", "used")[0] == "small"
    quiet = kurma.out("image", "list", "-q", "--sort", "used").split()
    assert quiet[0] == images["small"]
    assert set(quiet) >= set(images.values())
    assert kurma("image", "list", "--sort", "beauty").returncode == 2


def test_the_table(kurma: Any, images: dict[str, str], place: Path) -> None:
    (place / "fresh").mkdir()
    (place / "fresh" / "content").write_bytes(os.urandom(40_000))
    made = archive(str(place / "fresh"), str(place / "fresh.aci"), "example.com/fresh")
    image = kurma.out("image", "fetch", made).strip()

    def row() -> list[str]:
        header, *rows = (re.split(" {2,}", line.rstrip()) for line in kurma.out("image", "list").splitlines())
        assert header == ["ID", "NAME", "SIZE", "TRUST", "FETCHED", "LAST USED"]
        (found,) = [row for row in rows if row[1] == "example.com/fresh:1"]
        return found

    ident, _, size, trust, fetched, used = row()
    assert (ident, trust, used) == (image[:20], "local", "never")
    assert re.fullmatch(r"4\d\.\d kB", size), "what was extracted, without the archive"
    assert re.search(r"^archive +4\d\.\d kB$", kurma.out("image", "show", image), re.MULTILINE)
    assert re.fullmatch(r"just now|\d+ seconds? ago", fetched)
    kurma.out("image", "render", image)
    assert re.fullmatch(r"just now|\d+ seconds? ago", row()[-1])
    kurma.out("image", "rm", image)


def test_a_dry_run_removes_nothing_and_says_what_would_go(kurma: Any, place: Path) -> None:
    (place / "going").mkdir()
    (place / "going" / "content").write_bytes(os.urandom(40_000))
    made = archive(str(place / "going"), str(place / "going.aci"), "example.com/going")
    image = kurma.out("image", "fetch", made).strip()
    said = kurma.out("image", "rm", "--dry-run", image).splitlines()
    assert re.fullmatch(rf"image \S+ \({image[:20]}\): would be removed \([\d.]+ kB\)", said[0])
    assert re.fullmatch(r"[\d.]+ kB would be freed", said[-1])
    assert f"({image[:20]}): would be removed" in kurma.out("image", "gc", "--dry-run", "--grace-period", "0")
    kurma.out("image", "cat-manifest", image)
    kurma.out("image", "rm", image)
    assert kurma("image", "cat-manifest", image).returncode == 125


def test_json_is_as_documented(kurma: Any, images: dict[str, str]) -> None:
    for command, more in (
        ("image list", []),
        ("image show", [images["top"]]),
        ("image render", [images["large"]]),
        ("image gc", ["--dry-run", "--grace-period", "0"]),
    ):
        printed = kurma.out(*command.split(), *more, "--format", "json")
        json_fields.check(command, json.loads(printed))
    shown = json.loads(kurma.out("image", "show", images["top"], "--format", "json"))
    assert shown["manifest"] == json.loads(kurma.out("image", "cat-manifest", images["top"]))
    listed = kurma.out("image", "list", "--format", "yaml")
    assert yaml.safe_load(listed) == json.loads(kurma.out("image", "list", "--format", "json"))


def test_one_that_fails_does_not_keep_the_rest(kurma: Any, images: dict[str, str], place: Path) -> None:
    broken = place / "broken.aci"
    broken.write_bytes(b"no image")
    done = kurma("image", "fetch", "/no/such.aci", str(place / "small.aci"), str(broken), str(place / "top.aci"))
    assert done.returncode == 125
    assert done.stdout.split() == [images["small"], images["top"]]
    said = [line for line in done.stderr.splitlines() if line.startswith("kurma: ")]
    assert len(said) == 2
    assert "/no/such.aci" in said[0]
    assert "broken.aci" in said[1]


def test_what_is_damaged_is_well_again_as_the_hint_says(kurma: Any, place: Path) -> None:
    (place / "hurt").mkdir()
    (place / "hurt" / "content").write_text("as it was\n")
    made = archive(str(place / "hurt"), str(place / "hurt.aci"), "example.com/hurt")
    image = kurma.out("image", "fetch", made).strip()
    render = ("image", "render", "--renderer", "copy", "--verify", "example.com/hurt")
    content = Path(kurma.out(*render).strip(), "content")
    content.write_text("changed\n")
    done = kurma(*render)
    assert (done.returncode, done.stdout) == (125, "")
    assert "'content' has changed since it was extracted" in done.stderr
    assert "hint: remove every image that has these layers and fetch it anew" in done.stderr
    kurma.out("image", "rm", image)
    kurma.out("image", "fetch", made)
    kurma.out(*render)
    assert content.read_text() == "as it was\n"
    kurma.out("image", "rm", image)
    assert not content.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", ""], 2, "IMAGE is empty"),
        (["show", "example.com/nowhere"], 125, "no image example.com/nowhere"),
        (["show", "sha512-00"], 125, "sha512-00"),
        (["show", "sha512-" + "0" * 128], 125, "0000"),
        (["show", "a\nb\x1b[31m"], 125, "a b\\x1b[31m"),
        (["cat-manifest", "NAME:9"], 125, ":9"),
        (["export", "NAME", "/no/such/directory/file"], 125, "/no/such/directory/file"),
        (["export", "NAME", "/"], 2, "/: cannot be written"),
        (["render", "NAME", "--renderer", "nowhere"], 125, "nowhere"),
        (["render", "NAME", "--renderer", ""], 125, "renderer"),
        (["rm", "example.com/nowhere"], 125, "no image example.com/nowhere"),
        (["gc", "--grace-period", "soon"], 2, "'soon' is not a duration"),
        (["gc", "--grace-period", "-1"], 2, "'-1' is not a duration"),
        (["fetch", "--insecure-options", "everything", "x"], 2, "'everything'"),
        (["fetch", "--pull", "sometimes", "x"], 2, "'sometimes'"),
        (["fetch", ""], 2, "empty"),
        (["fetch", "ftp://example.com/x.aci"], 125, "'ftp'"),
        (["fetch", "docker://"], 2, "docker://"),
        (["fetch", "https:///x"], 2, "https:///x"),
        (["validate", "/"], 125, "/: "),
        (["build", "/no/such", "-o", "x.aci"], 2, "/no/such"),
        (["build"], 2, "expected either DIR or --from-rootfs DIR"),
        (["list", "--format", "xml"], 2, "'xml'"),
        (["list", "more"], 2, "more"),
    ],
)
def test_wrong_input_is_told_in_one_line(
    kurma: Any, images: dict[str, str], tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    """Standard output stays empty; the line says what is wrong, and nothing that a terminal would act upon."""
    assert images
    words = [word.replace("NAME", "example.com/shown/small") for word in words]
    done = kurma("image", *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("kurma: ")
    assert said in lines[0]
    assert all(line.startswith("  hint: ") for line in lines[1:])
    assert len(lines) <= 2
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


# --- progress ----------------------------------------------------------------------------------------------------


class Slow(http.server.BaseHTTPRequestHandler):
    """Fifteen pieces, a fifth of a second each: an estimate comes after two seconds."""

    content = b""

    def do_GET(self) -> None:
        if self.path != "/slow.aci":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        piece = len(self.content) // 15 + 1
        for at in range(0, len(self.content), piece):
            self.wfile.write(self.content[at : at + piece])
            self.wfile.flush()
            time.sleep(0.2)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "content").write_bytes(os.urandom(3_000_000))
    Slow.content = Path(
        archive(str(tmp_path / "slow"), str(tmp_path / "slow.aci"), "example.com/slow")
    ).read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/slow.aci"
    server.shutdown()
    server.server_close()
    thread.join()


def test_progress_on_a_terminal(kurma: Any, slow: str) -> None:
    """Size, speed and time left in one line that fits the terminal, gone at the end; the ID alone stays."""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "100"], stdin=theirs, check=True)
    process = subprocess.Popen(
        [*KURMA, "image", "fetch", "--insecure-options", "image,http", slow],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=kurma.environment,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    out, _ = process.communicate()
    assert process.returncode == 0, shown
    assert re.fullmatch(rb"sha512-[0-9a-f]{128}\n", out)
    drawn = re.findall(r"\r([^\r\n]*?)\x1b\[K", shown.decode())
    bars = [line for line in drawn if "%" in line]
    assert len(bars) >= 5
    shares = [int(re.findall(r"(\d+)%", line)[0]) for line in bars]
    assert shares == sorted(shares)
    assert shares[-1] >= 80
    assert any(re.search(r"\[#+\.*\]  .*MB / 3\.0 MB  [\d.]+ [kM]B/s  0:0\d left$", line) for line in bars), bars
    assert all(len(line) < 100 for line in drawn)
    assert drawn[-1] == "", "the line is taken away"
    assert not [line for line in shown.decode().split("\r\n") if "%" in line and not line.startswith("\r")]


def test_no_progress_elsewhere(kurma: Any, slow: str) -> None:
    done = kurma("image", "fetch", "--insecure-options", "image,http", slow)
    assert done.returncode == 0
    assert "%" not in done.stderr
    assert "\r" not in done.stderr
    assert re.fullmatch(r"sha512-[0-9a-f]{128}\n", done.stdout)
