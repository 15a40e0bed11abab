"""``write_a_network_plugin.md``: the examples have what it shows, and its configuration loads."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import find_page

ROOT = Path(__file__).parents[2]
TEXT = find_page("write_a_network_plugin.md").read_text()
EXCERPTS = re.findall(r"```(?:sh|python)\n# (examples/\S+)\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("path", "text"), EXCERPTS, ids=[path for path, _ in EXCERPTS])
def test_docs_network_excerpts_are_taken_from_what_is_tested(path, text):
    assert text.strip("\n") in (ROOT / path).read_text()


def test_docs_network_plugins_show_both_examples():
    networks = [path for path, _ in EXCERPTS if path.startswith("examples/networks/")]
    assert {path.split("/")[2] for path in networks} == {"shell", "cni"}


def test_docs_network_configuration_is_the_examples():
    """The page's entry is that of the example's README, but for what has a default."""
    readme = (ROOT / "examples/networks/shell/README.md").read_text()
    shown, told = (
        yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
        for text in (TEXT.partition("## An image")[2], readme)
    )
    assert shown["container_networks"][0].items() <= told["container_networks"][0].items()
