"""Listings as users of podman read them: columns, names as typed, filters, templates, labels (19.3)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.command import Kurma
from tests.kit.registry import BUSYBOX, OciDir, layer_tar, running_registry
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.parametrize("way", ["here", "kurmad"], indirect=True, scope="module")]

HEADINGS = ["UUID", "NAME", "IMAGE", "STATE", "EXIT", "AGE", "RESTARTS", "PORTS", "NETWORKS", "APPS"]


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The locator of an image of a registry."""
    directory = tmp_path_factory.mktemp("listings")
    (directory / "layout").mkdir()
    layout = OciDir(directory / "layout")
    layer = layer_tar({"bin": None, "bin/busybox": BUSYBOX.read_bytes(), "bin/sh": ("busybox",)})
    layout.image("v1", [layer], {"Entrypoint": ["/bin/sh", "-c", "exit 3"], "Env": ["PATH=/bin"]})
    with running_registry(directory / "registry") as registry:
        registry.push(f"oci:{layout.path}:v1", "team/job:v1")
        yield f"docker://{registry.host}/team/job:v1"


@pytest.fixture(scope="module")
def pods(commands: Kurma, pushed: str) -> Iterator[Kurma]:
    """A pod that runs, with a port and labels, one that ended with code 3, and one that was never started."""
    kurma = commands
    options = ("--name", "web", "-p", "18080:80", "-l", "tier=front", "--label", "solo", "--exec", "/bin/sh")
    web = kurma.popen("run", *options, kurma.image, "--", "-c", "exec sleep 1000")
    until(lambda: "running" in kurma.out("list"), "the pod")
    insecure = "--insecure-options=http"
    assert kurma("run", "--net", "none", "--name", "job", "--label=tier=back", insecure, pushed).returncode == 3
    kurma.out("create", "--name", "idle", "--net", "none", kurma.image)
    yield kurma
    for name in kurma.out("list", "--format", "{{.name}}").split():
        kurma.out("rm", "--force", name)
    web.communicate()
    kurma.out("network", "rm", "default")


def rows(text: str) -> dict[str, dict[str, str]]:
    """The cells of a table by name of the pod and heading."""
    head, *lines = [line.split() for line in text.splitlines()]
    found = [dict(zip(head, line, strict=True)) for line in lines]
    return {row["NAME"]: row for row in found}


def at_terminal(kurma: Kurma, columns: int, *words: str) -> list[str]:
    """What the command prints on a terminal of that width."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    done = subprocess.Popen([kurma.program, *words], stdout=writer, env=kurma.environment)
    os.close(writer)
    got = b""
    with suppress(OSError):  # a terminal ends so
        while more := os.read(reader, 4096):
            got += more
    os.close(reader)
    assert done.wait() == 0
    return got.decode().splitlines()


def test_all_columns_of_pods(pods: Kurma, pushed: str) -> None:
    text = pods.out("list")
    assert text.splitlines()[0].split() == HEADINGS
    found = rows(text)
    assert list(found) == ["web", "job", "idle"]
    web, job, idle = found.values()
    assert (web["IMAGE"], web["STATE"], web["EXIT"], web["PORTS"]) == (
        os.path.basename(pods.image), "running", "-", "18080:80",
    )  # fmt: skip
    assert web["RESTARTS"] == "0"
    assert web["AGE"][:-1].isdecimal()
    assert web["AGE"][-1] in "sm"
    assert web["NETWORKS"].startswith("default=")
    assert (job["IMAGE"], job["STATE"], job["EXIT"], job["PORTS"]) == (pushed, "stopped", "3", "-")
    assert (idle["STATE"], idle["EXIT"]) == ("prepared", "-")
    assert list(rows(pods.out("ps"))) == ["web"]
    assert list(rows(pods.out("ps", "-a"))) == ["web", "job", "idle"]


def test_a_terminal_gets_the_columns_that_fit(pods: Kurma) -> None:
    narrow, wide = (at_terminal(pods, columns, "ps", "-a") for columns in (80, 200))
    assert narrow[0].split() == [one for one in HEADINGS if one not in ("NETWORKS", "APPS")]
    assert max(map(len, narrow)) <= 80
    assert "\u2026" in narrow[2]
    assert narrow[2].split()[2].endswith("team/job:v1"[-8:])
    assert wide[0].split() == HEADINGS
    assert max(map(len, wide)) <= 200
    whole = at_terminal(pods, 80, "ps", "-a", "--no-trunc")
    assert whole[0].split() == HEADINGS
    assert len(whole[1].split()[0]) == 36
    images = at_terminal(pods, 80, "image", "list")
    assert max(map(len, images)) <= 80


@pytest.mark.parametrize("command", ["show", "status", "top"])
def test_a_pods_tables_fit_a_terminal(pods: Kurma, command: str) -> None:
    """19: looked at in 80 columns. Lines that are no table's are whole."""
    narrow, whole = (
        rows_of_tables(command, at_terminal(pods, 80, command, "web", *more)) for more in ((), ("--no-trunc",))
    )
    assert max(map(len, narrow)) <= 80
    assert max(map(len, whole)) > (80 if command == "show" else 40)
    assert sum(map(len, narrow)) <= sum(map(len, whole))


def rows_of_tables(command: str, lines: list[str]) -> list[str]:
    """The lines of a pod's page without its head and its notes."""
    first = {"show": [*lines, ""].index("") + 1, "status": 1, "top": 0}[command]
    return [line for line in lines[first:] if not line.startswith("note: ")]


def test_pages_name_images_as_they_were_typed(pods: Kurma, pushed: str) -> None:
    found = json.loads(pods.out("show", "--format", "json", "job"))
    (app,) = found["apps"]
    assert found["imageNames"] == {app: pushed}
    assert found["labels"] == {"tier": "back"}
    assert f"{app}  {pushed}  sha512-" in pods.out("show", "job")
    assert "tier=front" in pods.out("show", "web")
    assert json.loads(pods.out("show", "--format", "json", "web"))["imageNames"]["busybox"] == pods.image
    assert pushed in pods.out("app", "list", "job")
    pods.out("create", "--net", "none", "--name", "by-id", found["images"][app])
    names = pods.json("show", "by-id")["imageNames"]
    pods.out("rm", "by-id")
    assert names["app"].rpartition("/")[2].startswith("job")


def test_images_by_the_names_that_people_type(pods: Kurma, pushed: str) -> None:
    lines = [line.split() for line in pods.out("image", "list").splitlines()]
    (job,) = [line for line in lines if pushed in line]
    assert job[1] == pushed
    listed = json.loads(pods.out("image", "list", "--format", "json"))
    (image,) = [one for one in listed if one["names"] == [pushed]]
    assert image["archiveSize"] == 0
    # The same archive by two paths and by its name is one image, and its kept archive is not in its size.
    copy = pods.state / "copy.aci"
    copy.write_bytes(Path(pods.image).read_bytes())
    first, second = (pods.out("image", "fetch", str(path)).strip() for path in (pods.image, copy))
    assert first == second
    (own,) = [one for one in json.loads(pods.out("image", "list", "--format", "json")) if one["id"] == first]
    assert len(own["names"]) == 1
    layer = pods.state / "images/layers" / own["layers"][0] / "layer.json"
    assert own["size"] == json.loads(layer.read_text())["size"]
    assert own["archiveSize"] > 0
    assert pods.out("image", "list", "-q", "--filter", f"reference={pushed}").split() == [image["id"]]
    assert pods.out("image", "list", "-q", "--filter", "reference=job:*").split() == [image["id"]]
    assert image["id"] not in pods.out("image", "list", "-q", "--filter", f"before={image['id'][:16]}")
    with_labels = pods.out("images", "-q", "-f", "label=os=linux", "-f", "label=arch").split()
    assert image["id"] in with_labels
    assert first not in with_labels


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (("name=e",), ["web", "idle"]),
        (("status=running",), ["web"]),
        (("status=exited", "status=created"), ["job", "idle"]),
        (("exited=3",), ["job"]),
        (("label=tier",), ["web", "job"]),
        (("label=tier=front", "label=solo"), ["web"]),
        (("label=tier", "state=stopped"), ["job"]),
        (("network=default",), ["web"]),
        (("image=job",), ["job"]),
        (("ancestor=team/job",), []),
    ],
)
def test_filters_of_pods(pods: Kurma, filters: tuple[str, ...], names: list[str]) -> None:
    words = [word for text in filters for word in ("--filter", text)]
    assert list(rows(pods.out("list", *words))) == names
    as_json = json.loads(pods.out("list", "--format", "json", *words))
    assert [one["name"] for one in as_json] == names


def test_filters_by_ids_and_wrong_ones(pods: Kurma) -> None:
    (web,) = pods.out("ps", "-q").split()
    image = json.loads(pods.out("inspect", "web"))[0]["images"]["busybox"]
    assert pods.out("list", "-q", "-f", f"id={web[:6]}").split() == [web]
    assert web in pods.out("list", "-q", "-f", f"image={image[7:19]}").split()
    assert pods.out("list", "-q", "-f", "status=exited") == pods.out("ps", "-q", "-f", "status=exited") != ""
    for words, what in (
        (("list", "--filter", "colour=red"), "--filter: no key 'colour'"),
        (("image", "list", "--filter", "colour"), "--filter: malformed 'colour'"),
        (("ps", "--filter", "status=up"), "--filter: no state 'up'"),
    ):
        done = pods(*words)
        assert done.returncode == 2
        assert what in done.stderr


def test_templates(pods: Kurma, pushed: str) -> None:
    assert pods.out("list", "--format", "{{.name}}: {{.state}} {{.exitCode}}") == (
        "web: running \njob: stopped 3\nidle: prepared \n"
    )
    assert pods.out("ps", "--format", "{{.labels}} {{ json .labels.tier }}") == 'tier=front,solo= "front"\n'
    assert pods.out("show", "job", "--format", "{{.apps.job.exitReason}} {{.labels.none}}") == "exited \n"
    assert pods.out("inspect", "-f", "{{.name}}", "web", "job") == "web\njob\n"
    assert json.loads(pods.out("ps", "--format", "{{json .}}"))["name"] == "web"
    assert pods.out("ps", "--format", r"table {{.name}}\t{{.createdAt}}").splitlines()[0] == "NAME  CREATED AT"
    assert pods.out("ps", "--format", "table {{.name}}", "--no-legend") == "web\n"
    assert pods.out("ps", "--format", "{{.networks.ports.hostPort}} {{.networks.1.network}}") == ",18080 default\n"
    assert pushed in pods.out("images", "--format", "{{.names}}")
    assert "bridge" in pods.out("network", "ls", "--format", "{{.driver}}", "--filter", "name=default")
    for command in (("list",), ("show", "web"), ("inspect", "web"), ("images",), ("network", "list")):
        done = pods(*command, "--format", "{{.nam}}")
        assert (done.returncode, done.stdout) == (2, "")
        assert "no key 'nam'" in done.stderr
        assert "did you mean {{.name" in done.stderr
    assert "malformed" in pods("ps", "--format", "{{range .name}}").stderr
    assert pods("ps", "--format", "csv").returncode == 2


def test_labels_of_the_pod_file_and_the_events(pods: Kurma, tmp_path: Path) -> None:
    kurma = pods
    file = tmp_path / "pod.yml"
    file.write_text(f"apps: [{{name: a, image: {kurma.image}}}]\nuserLabels: {{tier: front, owner: me}}\n")
    kurma.out("create", "--pod", str(file), "--name", "labelled", "--net", "none", "--label", "tier=back")
    assert kurma.out("list", "-f", "name=labelled", "--format", "{{.labels}}") == "tier=back,owner=me\n"
    assert json.loads(kurma.out("cat-manifest", "labelled"))["userLabels"] == {"tier": "back", "owner": "me"}
    events = [json.loads(line) for line in kurma.out("events", "--no-follow", "--format", "json").splitlines()]
    (made,) = [one for one in events if one["name"] == "labelled"]
    assert made["detail"] == {"labels": {"tier": "back", "owner": "me"}}
    assert "prepared" in kurma.out("events", "--no-follow", "--format", "{{.kind}}").split()
    assert kurma("create", "--label", "=x", kurma.image).returncode == 2
    kurma.out("rm", "labelled")
