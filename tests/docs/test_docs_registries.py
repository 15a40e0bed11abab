"""``registries.md``: its configuration loads, its credentials are read as it says, its options are all there.
(Its commands are run in tests/integration/fetching.)"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from kurma_fetch_docker.logins import Logins
from kurma_fetch_docker.plugin import OPTIONS

from kurma_core.config import load
from kurma_core.errors import FetchUnauthorizedError
from tests.docs.pages import find_page

TEXT = find_page("registries.md").read_text()
BLOCKS = re.findall(r"```(yaml|json)\n(.*?)```", TEXT, re.DOTALL)
YAML = [text for kind, text in BLOCKS if kind == "yaml"]
FILES = [text for kind, text in BLOCKS if kind == "json"]


@pytest.mark.parametrize("text", YAML, ids=[" ".join(text.split()[:2]) for text in YAML])
def test_docs_registries_configuration_loads(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kurma.yml"
    file.write_text(text)
    assert set(load(str(file)).origins.values()) > {str(file)}


def test_docs_registries_credentials_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    docker, ours = FILES
    (tmp_path / "auth.json").write_text(docker)
    logins = Logins("", str(tmp_path / "auth.json"))
    users = {name: logins.find("quay.io", name) for name in ("app", "team/app")}
    assert {name: login and login.user for name, login in users.items()} == {"app": "user", "team/app": "team"}
    assert logins.find("registry.example.com:5000", "app") is not None
    with pytest.raises(FetchUnauthorizedError, match="docker-credential-pass: it is not installed"):
        logins.find("ghcr.io", "app")
    (tmp_path / "auth.d").mkdir()
    (tmp_path / "auth.d/a.json").write_text(ours)
    (tmp_path / "auth.d/a.json").chmod(0o600)
    entry = json.loads(ours)
    found = Logins(str(tmp_path / "auth.d"), "/none").find(entry["hosts"][0])
    assert found is not None
    assert (found.user, found.password) == (entry["user"], entry["password"])


def test_docs_registries_tells_every_option() -> None:
    table = TEXT.split("## Options")[1].split("A registry that asks")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [option.name for option in OPTIONS]
    for option in OPTIONS[:2]:
        assert f"| `{option.name}` | {option.default:g} |" in table
