"""``docs/reference/configuration.md``: every key is there, as the code has it, and the examples load."""

import re
from pathlib import Path

import pytest

from docs.generated import configuration_rows
from kurma_core.config import load
from kurma_core.config.schema import KINDS, SCHEMA, SHAPES
from tests.docs.pages import find_page

ROOT = Path(__file__).parents[2]
TEXT = find_page("configuration.md").read_text()
EXAMPLES = re.findall(r"```(yaml|json)\n(.*?)```", TEXT, re.DOTALL)


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
    config = load(str(tmp_path))
    assert config.origins["auth_dir"] == "beside the configuration"
    for path, _, default, _ in configuration_rows(SCHEMA):
        if path == "auth_dir":
            continue
        value = config.to_json()
        for name in path.split("."):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            assert value == default, path
