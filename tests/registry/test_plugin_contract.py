"""The version of the plugin contract, and groups that Kurma does not have."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from kurma_testing import load_driver

from kurma_core import hookspecs
from kurma_core.errors import PluginError, PluginSkipped
from kurma_core.plugins import contract

ROOT = Path(__file__).parents[2]
NETWORKS = "kurma.networks"
#: The plugins of this repository, examples too: group, name and module or attribute of each entry point.
OWN = [
    pytest.param(group, name, value, id=f"{group}/{name}")
    for file in sorted((*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("examples/plugins/*/pyproject.toml")))
    for group, entries in tomllib.loads(file.read_text())["project"]["entry-points"].items()
    for name, value in entries.items()
]


@pytest.fixture
def needing(install, network):
    """``needing("2", source)``: a distribution with a network plugin that declares that version."""

    def needing(version, source=network):
        site = install("kurma-test", {"one": source}, version="2.0")
        (info,) = site.glob("*.dist-info")
        with open(info / "entry_points.txt", "a") as file:
            file.write(f"[kurma.contract]\n{version} = nothing_of_this_name\n")

    return needing


@pytest.mark.parametrize(
    ("version", "said", "hint"),
    [
        ("2", "needs Kurma's plugin contract 2, this is 1", "upgrade kurma-core"),
        ("0", "was made for Kurma's plugin contract 0; this Kurma serves 1 and later", "upgrade kurma-test"),
    ],
)
def test_a_plugin_of_another_version_is_refused_before_it_is_imported(needing, registry, version, said, hint):
    needing(version, "from kurma_core.hookspecs import of_a_later_kurma")
    plugins = registry()
    with pytest.raises(PluginError) as caught:
        plugins.driver(NETWORKS, "one")
    assert str(caught.value) == f"network plugin 'one' of kurma-test 2.0 {said}"
    assert caught.value.hint == hint
    (row,) = [info for info in plugins.listing() if info.name == "one"]
    assert (row.status, row.reason) == ("failed", str(caught.value))


def test_a_plugin_of_this_version_works(needing, registry):
    needing(str(hookspecs.CONTRACT))
    plugins = registry()
    assert plugins.driver(NETWORKS, "one")
    assert [info.reason for info in plugins.listing() if info.kind == "contract"] == []


def test_a_needed_contract_version_must_be_a_number(needing, registry):
    needing("two")
    with pytest.raises(PluginError, match=r"'one' of kurma-test 2.0: its entry of kurma.contract is 'two', not a"):
        registry().driver(NETWORKS, "one")


def test_another_distribution_may_need_another_version(needing, install, registry, network):
    needing("2")
    install("kurma-other", {"two": network})
    assert registry().driver(NETWORKS, "two")


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("kurma.isolator", "there is no group kurma.isolator; the nearest is kurma.isolators"),
        ("kurma.wholly-other", "there is no group kurma.wholly-other"),
    ],
)
def test_a_group_that_kurma_does_not_have_is_listed_as_failed(install, registry, network, group, said):
    install("kurma-test", {"one": network}, group=group)
    (row,) = [info for info in registry().listing() if info.distribution == "kurma-test"]
    assert (row.kind, row.name, row.version) == (group.removeprefix("kurma."), "one", "1.0")
    assert (row.status, row.reason) == ("failed", said)


def test_all_groups_have_a_specification():
    assert set(hookspecs.SPECS) == set(hookspecs.GROUPS)
    assert all(contract.kinds(group) for group in hookspecs.GROUPS)


@pytest.mark.parametrize(("group", "name", "value"), OWN)
def test_kurmas_own_plugins_and_examples_fulfil_the_contract(group, name, value, tmp_path, monkeypatch):
    for directory in ROOT.glob("examples/plugins/*/"):
        monkeypatch.syspath_prepend(str(directory))
    module, _, attribute = value.partition(":")
    plugin = import_module(module)
    config = {"memo": {"directory": str(tmp_path)}, "webhook": {"url": "http://127.0.0.1:1/"}}.get(name, {})
    try:
        driver = load_driver(getattr(plugin, attribute) if attribute else plugin, tmp_path, config)
    except PluginSkipped:
        return  # its module is checked, and this host lacks something that its driver needs
    assert type(driver) in contract.kinds(group)
