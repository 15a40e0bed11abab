"""What ``docs/reference/json.md`` says of ``--format json`` is what the commands print, key by key."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from kurma_core.api.images import ImageGc, Removal, TrustedKey
from kurma_core.cli.commands import TABLE, Alias, Entry, Group
from kurma_core.models.image import ImageRecord, Provenance
from tests.cli import json_fields

IMAGE = ImageRecord(
    id="sha512-" + "ab" * 64,
    name="example.com/a",
    version="1",
    labels={"version": "1"},
    size=5,
    layers=("sha512-" + "ab" * 64,),
    provenance=(Provenance("file:///a.aci", "2024-05-31T12:00:00Z", "local"),),
)


def formatted(entries: Mapping[str, Entry | Alias | Group], way: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command that takes ``--format``."""
    for name, entry in entries.items():
        if isinstance(entry, Group):
            yield from formatted(entry.entries, (*way, name))
            continue
        if isinstance(entry, Alias):
            continue
        command = getattr(importlib.import_module(f"kurma_core.cli.commands.{entry.module}"), entry.attribute)
        if any(option.name == "format" for option in command.options):
            yield " ".join((*way, name))


def test_every_command_that_takes_format_is_documented() -> None:
    assert sorted(json_fields.sections()) == sorted(formatted(TABLE))


def printed(directory: Path, *words: str) -> str:
    (directory / "state").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "kurma_core.cli.main", "--dir", str(directory / "state"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("stager list", []),
        ("network list", []),
        ("network show", ["default"]),
        ("isolators list", []),
        ("plugins list", []),
        ("plugins show", ["networks/cni"]),
        ("info", []),
    ],
)
def test_keys_as_printed(tmp_path: Path, command: str, more: list[str]) -> None:
    words = [*command.split(), *more, "--format"]
    value = json.loads(printed(tmp_path, *words, "json"))
    assert value
    json_fields.check(command, value)
    if command == "network show":
        assert yaml.safe_load(printed(tmp_path, *words, "yaml")) == value


def test_keys_of_records(fakes: ModuleType) -> None:
    """Of those that need root, or more: what the records say of themselves. The root tests print images'."""
    pod = fakes.record().to_json()
    json_fields.check("show", pod)
    json_fields.check("list", [pod])
    json_fields.check("image list", [{**IMAGE.to_json(), "locators": []}])
    json_fields.check("image gc", ImageGc((Removal("image", IMAGE.id, 5),)).to_json())
    key = TrustedKey(
        scope="root",
        prefix=None,
        fingerprint="AB" * 20,
        state="trusted",
        users=("a",),
        created="2024-05-31T12:00:00Z",
        expires=None,
        path="/etc/kurma/trustedkeys/root.d/ab",
        problem=None,
    )
    json_fields.check("trust list", [key.to_json()])


def test_a_key_too_many_or_too_few_is_seen() -> None:
    value = {**IMAGE.to_json(), "locators": []}
    for broken in (
        {**value, "new": 1},
        {key: one for key, one in value.items() if key != "size"},
        {**value, "provenance": [{**value["provenance"][0], "new": 1}]},
        {**value, "provenance": [{"locator": "x"}]},
    ):
        with pytest.raises(AssertionError, match="kurma image list"):
            json_fields.check("image list", [broken])
