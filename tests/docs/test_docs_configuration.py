"""``docs/configuration.md``: every key is there, as the code has it, and the examples load."""

import json
import re
from pathlib import Path

import pytest

from kurma_core.config import load
from kurma_core.config.schema import KINDS, SCHEMA, SHAPES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/configuration.md").read_text()
EXAMPLES = re.findall(r"```(yaml|json)\n(.*?)```", TEXT, re.DOTALL)


def rows(keys, prefix=""):
    """(dotted path, what it may be, default, help) of every key, in the table's order."""
    for key in keys:
        path = prefix + key.name
        if key.shape == "section":
            yield from rows(key.keys, f"{path}.")
        elif key.shape == "named":
            yield path, "mapping by name", key.default, key.help
            yield from rows(key.keys, f"{path}.NAME.")
        elif key.shape == "list of named":
            yield path, "list", key.default, key.help
            yield from rows(key.keys, f"{path}[].")
        else:
            words = ", ".join(f"`{word}`" for word in key.words)
            yield path, words or key.shape, key.default, key.help


def expected():
    """The table. The kinds of plugins differ in nothing but their names: one stands for all."""
    lines = ["| key | value | default | |", "|---|---|---|---|"]
    for path, shape, default, text in rows(SCHEMA):
        if path.startswith("plugins.") and path != "plugins.enable":
            kind = path.split(".")[1]
            if kind != KINDS[0]:
                continue
            path, text = path.replace(kind, "KIND", 1), text.replace(f"kurma.{kind}", "kurma.KIND")
        shown = "" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"
        lines.append(f"| `{path}` | {shape} | {shown} | {text} |")
    return lines


def test_every_key_is_told():
    table = TEXT.split("## Every key\n\n")[1].split("\n\n")[0].splitlines()
    assert table == expected()


def test_every_kind_is_named():
    sentence = TEXT.split("`KIND` is ")[1].split(".")[0]
    assert re.findall(r"`(\w+)`", sentence) == list(KINDS)


def test_every_shape_can_be_read():
    shapes = {key.shape for key in walk(SCHEMA)}
    assert shapes <= {*SHAPES, "section", "named", "list of named", "word"}


def walk(keys):
    for key in keys:
        yield key
        yield from walk(key.keys)


@pytest.mark.parametrize(("kind", "text"), EXAMPLES, ids=[text.splitlines()[0] for _, text in EXAMPLES])
def test_examples_load(tmp_path, kind, text):
    file = tmp_path / ("kurma.json" if kind == "json" else "kurma.yml")
    file.write_text(text)
    assert set(load(str(file)).origins.values()) > {str(file)}


def test_the_same_network_twice(tmp_path):
    """The two ways of writing the networks mean the same, but for what the sentence between them says."""
    configs = []
    for kind, text in EXAMPLES:
        if "container_networks" in text:
            file = tmp_path / f"example.{kind}"
            file.write_text(text)
            configs.append(load(str(file)).container_networks)
    (one, two) = configs
    assert [network.name for network in one] == [network.name for network in two] == ["lo", "mynet", "default"]
    assert one[1].config == two[1].config


def test_defaults_are_what_no_file_gives(tmp_path):
    (tmp_path / "kurma.d").mkdir()
    config = load(str(tmp_path)).to_json()
    for path, _, default, _ in rows(SCHEMA):
        value = config
        for name in path.split("."):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            assert value == default, path
