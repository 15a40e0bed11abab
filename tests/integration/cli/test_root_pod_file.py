"""Pod files that change single values of an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.parametrize("way", ["process", "kurmad"], scope="module")]

TOLD = 'echo "$A $B $(pwd) $(id -u):$(id -g) $*"; hostname; cat /etc/hosts /etc/resolv.conf'


def pod_file(directory: Path, app: dict[str, Any], **pod: Any) -> str:
    file = directory / "pod.json"
    file.write_text(json.dumps({"apps": [{"name": "one", **app}], "networks": ["none"], **pod}))
    return str(file)


def changing(kurma: Any) -> dict[str, Any]:
    return {
        "image": kurma.image,
        "exec": ["/bin/sh", "-c", TOLD, "zero"],
        "args": ["of", "file"],
        "environment": [{"name": "A", "value": "a"}, {"name": "B", "value": "b"}],
        "user": "alice",
        "workingDirectory": "/tmp",
    }


def test_keys_of_an_app_change_one_value_each(kurma: Any, tmp_path: Path) -> None:
    file = pod_file(
        *(tmp_path, changing(kurma)),
        hostname="desk",
        dns={"nameservers": ["10.0.0.53"], "search": ["example.com"], "exact": True},
        hosts=[{"address": "10.0.0.5", "names": ["db", "db.local"]}],
    )
    done = kurma("run", "--rm", "--pod", file)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["a b /tmp 1000:100 of file", "desk"], done.stderr
    assert any(line.split() == ["10.0.0.5", "db", "db.local"] for line in lines)
    assert set(lines[-2:]) == {"search example.com", "nameserver 10.0.0.53"}


def test_the_command_line_replaces_what_the_file_says(kurma: Any, tmp_path: Path) -> None:
    file = pod_file(tmp_path, changing(kurma), hostname="desk")
    options = ("-e", "B=c", "--user", "0", "--hostname", "table")
    done = kurma("run", "--rm", "--pod", file, *options, "--", "of", "caller")
    assert done.stdout.splitlines()[:2] == ["a c /tmp 0:0 of caller", "table"], done.stderr


def test_what_a_file_does_not_name_is_the_images(kurma: Any, tmp_path: Path) -> None:
    """Its command, too: it prints hello, and ends with 3."""
    file = pod_file(tmp_path, {"image": kurma.image, "environment": [{"name": "A", "value": "a"}]})
    done = kurma("run", "--name", "one", "--pod", file)
    assert (done.returncode, done.stdout) == (3, "hello\n"), done.stderr
    (app,) = json.loads(kurma.out("cat-manifest", "one"))["apps"]
    assert "environment" not in app
    assert app["app"]["environment"] == [{"name": "A", "value": "a"}]


def test_an_isolator_of_a_file_needs_a_grant(kurma: Any, tmp_path: Path) -> None:
    name = "os/linux/capabilities-retain-set"
    power = {"name": name, "value": {"set": ["CAP_SYS_ADMIN"]}}
    file = pod_file(tmp_path, {"image": kurma.image, "isolators": [power]})
    refused = kurma("run", "--rm", "--pod", file)
    assert refused.returncode == 125
    assert "beyond the default, and no grant of kurma.yml gives it" in refused.stderr
    granted = kurma("run", "--rm", "--grant", f"{name}=CAP_SYS_ADMIN", "--pod", file)
    assert (granted.returncode, granted.stdout) == (3, "hello\n"), granted.stderr


def test_a_mistyped_key_is_refused(kurma: Any, tmp_path: Path) -> None:
    done = kurma("run", "--rm", "--pod", pod_file(tmp_path, {"image": kurma.image, "enviroment": []}))
    assert (done.returncode, done.stdout) == (125, "")
    assert "unknown key $.apps[0].enviroment; did you mean environment?" in done.stderr


def test_files_beside_a_pod_file_are_found_from_anywhere(kurma: Any, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/page").write_text("a page\n")
    (tmp_path / "settings.env").write_text("A=file\nB=file\n")
    app = {
        "image": kurma.image,
        "exec": ["/bin/sh", "-c", 'cat /site/page; echo "$A $B"'],
        "environmentFiles": ["settings.env"],
        "environment": [{"name": "B", "value": "own"}],
        "mounts": [{"volume": "site", "path": "/site"}],
    }
    file = pod_file(tmp_path, app, name="beside", volumes=[{"name": "site", "kind": "host", "source": "./site"}])
    done = kurma("run", "--pod", file, cwd="/")
    assert (done.returncode, done.stdout) == (0, "a page\nfile own\n"), done.stderr
    (pod,) = json.loads(kurma.out("list", "--format", "json"))
    assert pod["name"] == "beside"
    done = kurma("run", "--rm", "--name", "other", "--pod", "-", input=Path(file).read_text(), cwd=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "a page\nfile own\n"), done.stderr


def test_run_takes_a_file_of_one_pod(kurma: Any, tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    pod = {"apps": [{"name": "one", "image": kurma.image}], "networks": ["none"]}
    file.write_text(json.dumps({"pods": [pod]}))
    assert kurma("run", "--rm", "--pod", str(file)).stdout == "hello\n"
    file.write_text(json.dumps({"pods": [pod, pod]}))
    done = kurma("run", "--rm", "--pod", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file} has 2 pods, and --pod takes one" in done.stderr
