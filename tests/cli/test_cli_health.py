"""The options for health checks, as podman names them, arrive in the pod's app (21.5)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kurma_core.cli.main import main
from kurma_core.models.health import HEALTH_CHECK


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def check_of(fakes: ModuleType, *words: str) -> Any:
    client = fakes.FakeClient()
    code = main(["prepare", *words], connect=client.connect)
    assert [name for name, _, _ in client.calls] == ["prepare"], code
    text = client.calls[0][1][0].template.pod.apps[0].annotation(HEALTH_CHECK)
    return json.loads(text) if text not in (None, "none") else text


def test_every_option(fakes: ModuleType) -> None:
    words = "--health-interval 5s --health-timeout 1m --health-start-period 0 --health-start-interval 500ms"
    found = check_of(
        fakes, *words.split(), "--health-retries=2", "--health-on-failure=kill", "--health-cmd", "a b || c", "img"
    )
    assert found == {
        "command": ["/bin/sh", "-c", "a b || c"],
        "interval": 5,
        "timeout": 60,
        "startPeriod": 0,
        "startInterval": 0.5,
        "retries": 2,
        "onFailure": "kill",
    }


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('["pg_isready", "-q"]', ["pg_isready", "-q"]),
        ('["CMD", "a"]', ["a"]),
        ('["CMD-SHELL", "a b"]', ["/bin/sh", "-c", "a b"]),
        ("[ -e /ok ]", ["/bin/sh", "-c", "[ -e /ok ]"]),
        ('[ "a" ]', ["a"]),
    ],
)
def test_words_and_brackets(fakes: ModuleType, text: str, command: list[str]) -> None:
    assert check_of(fakes, "--health-cmd", text, "img") == {"command": command}


@pytest.mark.parametrize(
    ("words", "check"),
    [
        ("--health-http http://localhost", {"http": {"scheme": "http", "port": 80}}),
        ("--health-http http://:8080/a?b", {"http": {"scheme": "http", "port": 8080, "path": "/a?b"}}),
        ("--health-http https://[::1]/", {"http": {"scheme": "https", "port": 443, "host": "::1"}}),
        ("--health-tcp 5432", {"tcp": {"port": 5432}}),
        ("--health-tcp [::1]:5432", {"tcp": {"port": 5432, "host": "::1"}}),
        ("--health-tcp 127.0.0.2:5432", {"tcp": {"port": 5432, "host": "127.0.0.2"}}),
    ],
)
def test_requests(fakes: ModuleType, words: str, check: dict[str, dict[str, object]]) -> None:
    ((key, value),) = check.items()
    usual: dict[str, object] = {"host": "127.0.0.1"}
    if key == "http":
        usual |= {"path": "/", "headers": []}
    assert check_of(fakes, *words.split(), "img") == {key: usual | value}


def test_none(fakes: ModuleType) -> None:
    assert check_of(fakes, "--no-healthcheck", "img") == "none"
    assert check_of(fakes, "--health-cmd", "none", "img") == "none"
    assert check_of(fakes, "img") is None


def test_options_change_single_settings_of_a_pod_file(fakes: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "pod.json"
    app = {"name": "web", "image": "img", "healthCheck": {"command": ["a"], "retries": 7}}
    file.write_text(json.dumps({"apps": [app]}))
    assert check_of(fakes, "--pod", str(file)) == {"command": ["a"], "retries": 7}
    assert check_of(fakes, "--pod", str(file), "--health-retries", "2") == {"command": ["a"], "retries": 2}
    assert check_of(fakes, "--pod", str(file), "--no-healthcheck") == "none"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--no-healthcheck --health-retries 3", "--no-healthcheck and --health-retries contradict each other"),
        ("--no-healthcheck --health-cmd true", "--no-healthcheck and --health-cmd contradict each other"),
        ("--health-cmd none --health-timeout 3s", "--health-timeout contradict"),
        ("--health-retries many", "'many' is not a number from 1 to 1000"),
        ("--health-retries 0", "'0' is not a number"),
        (f"--health-retries {'9' * 5000}", "is not a number from 1 to 1000"),
        ("--health-interval soon", "--health-interval: 'soon' is not a duration"),
        ("--health-cmd [] --health-retries 3", "expected a JSON list of words"),
        ("--health-cmd x --health-timeout 0", "--health-timeout: '0' is not a time from 0.1 s to 168 h"),
        ("--health-cmd x --health-start-period 999h", "--health-start-period: '999h' is not a time from 0 s"),
        ("--health-http localhost:80/x", "--health-http: 'localhost:80/x' is not such an address"),
        ("--health-http http://u:p@localhost/", "is not such an address"),
        ("--health-http \x01http://localhost/", "is not such an address"),
        ("--health-http http://localhost:99999/", "is not such an address"),
        ("--health-http http://shop.example/", "expected an IP address, or localhost"),
        ("--health-tcp http", "--health-tcp: 'http' is not a port"),
        ("--health-tcp :80", "--health-tcp: ':80' is not a port"),
        ("--health-tcp 70000", "expected an integer from 1 to 65535"),
        ("--health-tcp 80 --health-cmd x", "--health-cmd and --health-tcp contradict each other"),
        ("--health-tcp 80 --no-healthcheck", "--no-healthcheck and --health-tcp contradict each other"),
        ('--health-cmd [""]', "--health-cmd: the command is empty"),
        ('--health-cmd ["CMD"]', "--health-cmd: the command is empty"),
        ('--health-cmd ["CMD-SHELL",""]', "--health-cmd: the command is empty"),
        ('--health-cmd ["CMD-SHELL","a","b"]', "CMD-SHELL takes one text"),
        ('--health-cmd ["a",b] --health-retries 3', "expected a JSON list of words"),
    ],
)
def test_refused(fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str, why: str) -> None:
    client = fakes.FakeClient()
    assert main(["prepare", *words.split(), "img"], connect=client.connect) == 2
    assert client.calls == []
    assert why in capsys.readouterr().err


def test_they_need_one_app(fakes: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps({"apps": [{"name": name, "image": "img"} for name in ("a", "b")]}))
    client = fakes.FakeClient()
    assert main(["prepare", "--pod", str(file), "--health-cmd", "true"], connect=client.connect) == 2
    assert "--health-cmd needs a pod of one app; this pod has 2" in capsys.readouterr().err
