"""The tables of ``pod_file.md`` have each key that the readers take, and no other (19.2)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from docs.pod_keys import ANNOTATIONS, TABLES, Key
from kurma_core.api.pod_file import FILES, PODS, PROJECT, pods_of
from kurma_core.appc import image, pod, secrets, template
from kurma_core.appc.overrides import AppOverrides
from kurma_core.appc.template import PodTemplate
from kurma_core.schema import members
from tests.docs.blocks import blocks
from tests.docs.pages import ROOT, find_page

#: Functions of the readers that a pod file does not go through: they read an image's manifest.
_OF_IMAGES = {"_read_dependency", "parse"}
#: Values that the readers check.
VALUES = {
    "hostIP": "127.0.0.1",
    "id": f"sha512-{'0' * 128}",
    "kind": "host",
    "kurma.io/propagation": "private",
    "kurma.io/size": "1Mi",
    "kurma.io/uuid": "6733c088-a507-4694-aabf-fffffffffffc",
    "acVersion": "0.8.11",
    "eventHandlers[].name": "pre-start",
    "image.name": "example.com/web",
    "protocol": "tcp",
}


def value(key: Key) -> object:
    """A value of a key's type."""
    last = key.path.split(".")[-1]
    for name in (key.path, last):
        if name in VALUES:
            return VALUES[name]
    kinds = {
        "true or false": True,
        "number": 80,
        "duration": "1m30s",
        "`http` or `https`": "https",
        "`none`, `kill`, `restart` or `stop`": "kill",
        "list of texts, or text": ["/bin/true"],
        "path": "/srv",
        "octal digits": "0755",
        "list of texts": ["/bin/true"],
        "list of numbers": [1],
        "IP address": "127.0.0.1",
        "list of IP addresses": ["127.0.0.1"],
        "list of domains": ["example.com"],
        "list of words": ["rotate"],
        "list of names": ["lo"],
        "list of `noexec`, `nosuid`, `nodev`": ["noexec"],
        "object of texts": {"a": "b"},
        "`PodManifest`": "PodManifest",
        "list of `name` and `value`": [{"name": "a", "value": "b"}],
    }
    return kinds.get(key.type, "web")


def filled(table: str, *without: str) -> dict[str, object]:
    """An object that has each key of a table."""
    found: dict[str, object] = {}
    for key in TABLES[table]:
        if key.path.split(".")[0] in without or any(key.path.startswith(one) for one in without):
            continue
        into, at = found, ""
        for outer in sorted({one.path for one in TABLES[table]}, key=len):
            for mark in ("[].", "."):
                if key.path.startswith(outer + mark):
                    inner = into[outer.removeprefix(at)]
                    into = inner[0] if isinstance(inner, list) else inner  # type: ignore[assignment]
                    at = outer + mark
        path = key.path.removeprefix(at)
        if any(one.path.startswith(f"{key.path}[].") for one in TABLES[table]):
            into[path] = [{}]
        elif any(one.path.startswith(f"{key.path}.") for one in TABLES[table]):
            into[path] = {}
        else:
            into[path] = value(key)
    return found


def test_a_file_with_every_key_is_read() -> None:
    of_host = ("source", "recursive", *(f"kurma.io/{one}" for one in ("idmap", "propagation", "create")))
    of_host = (*of_host, "kurma.io/recursive-read-only")
    options = "kurma.io/options"
    of_empty = ("mode", "uid", "gid", "kurma.io/memory", "kurma.io/size", "kurma.io/seed")
    of_image = ("kurma.io/image", "kurma.io/sub-path")
    own = "kurma.io/volume"
    host = filled("volume", *of_empty, *of_image, "volume")
    empty = filled("volume", *of_host, *of_image, options, "volume", own) | {"kind": "empty", "name": "empty"}
    image = filled("volume", *of_host, *of_empty, "volume", own) | {"kind": "image", "name": "image"}
    image["kurma.io/sub-path"] = "srv"
    named = filled("volume", *of_host, *of_empty, *of_image, own) | {"kind": "named", "name": "named"}
    app = filled("app", FILES, "secrets[].environment", "healthCheck.command", "healthCheck.tcp")
    app["app"] = filled("runs")
    app["mounts"] = [{"volume": "web", "path": "/srv", "appVolume": host}]
    document = filled("pod") | {"apps": [app], "ports": [filled("published")]}
    document["volumes"] = [host, empty, image, named]
    warnings: list[str] = []
    PodTemplate.parse(document, warn=warnings.append)
    assert warnings == []


def taken() -> set[str]:
    """The keys that the readers take, by name, from the code."""
    found = set()
    for module in (pod, image, secrets, template):
        source = module.__file__
        assert source is not None
        with open(source) as file:
            tree = ast.parse(file.read())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or (module is image and function.name in _OF_IMAGES):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                    found |= _key(module, call)
    return found


_READS = {
    "take",
    "string",
    "optional",
    "strings",
    "objects",
    "boolean",
    "integer",
    "nested",
    "elements",
    "string_map",
}


def _key(module: object, call: ast.Call) -> set[str]:
    assert isinstance(call.func, ast.Attribute)
    first = call.args[0]
    if call.func.attr not in _READS:
        return set()
    if isinstance(first, ast.Constant):
        return {str(first.value)}
    if isinstance(first, ast.Name) and isinstance(getattr(module, first.id, None), str):
        return {getattr(module, first.id)}
    return set()


def test_every_key_that_is_read_is_in_a_table() -> None:
    names = {name for table in TABLES.values() for key in table for name in key.path.replace("[]", "").split(".")}
    named = {key.path for table in TABLES.values() for key in table} | names
    assert {key for key in taken() if key not in named and not key.startswith("kurma.io/")} <= {"value", "labels"}
    own = {key for key in taken() if key.startswith("kurma.io/")}
    assert own
    assert {key for key in own if not any(key in one for one in named)} == set()


def test_the_keys_that_change_one_value_are_those_of_a_request() -> None:
    keys = {member.key for member in members(AppOverrides)}
    assert keys == set(pod.OVERRIDES)
    assert keys <= {key.path for key in TABLES["app"]}


def test_the_keys_of_a_file_of_several_pods() -> None:
    assert [key.path for key in TABLES["file"]] == [PODS, PROJECT]


def test_every_annotation_is_in_the_code() -> None:
    places = ("kurma_core", "plugins")
    source = "".join(file.read_text() for place in places for file in (ROOT / place).rglob("*.py"))
    assert [row[0] for row in ANNOTATIONS if f'"{row[0]}"' not in source] == []


def test_recipes_are_pod_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [block for block in blocks(find_page("pod_file.md").read_text()) if block.file]
    assert len(files) >= 7
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.env").write_text("A=b")
    for block in files:
        warnings: list[str] = []
        for document in pods_of(yaml.safe_load(block.body), "-").pods:
            PodTemplate.parse(document, warn=warnings.append)
        assert warnings == [], block.file
