"""The bridge network that bridges.md and the plugin's README show is one, and the keys are all told."""

import re
from pathlib import Path

import pytest
from kurma_net_bridge.settings import Settings, parse_settings

from kurma_core.config import load
from kurma_core.schema import members
from tests.docs.pages import find_page

ROOT = Path(__file__).parents[2]
PAGE = find_page("bridges.md").read_text().partition("\n## ")[0]
README = (ROOT / "plugins/net_bridge/README.md").read_text()


@pytest.mark.parametrize("text", [PAGE, README], ids=["bridges.md", "README.md"])
def test_the_example_is_a_network(tmp_path, text):
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "kurma.yml"
    file.write_text(example)
    entry = load(str(file)).container_networks[0]
    settings = parse_settings({**entry.config, "name": entry.name})
    assert (entry.plugin, settings.bridge) == ("bridge", "mine0")
    assert [str(one) for one in settings.subnets] == ["10.90.0.0/24", "fd00:90::/64"]


def test_every_key_is_told():
    assert {"name", *re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)} == {one.key for one in members(Settings)}
