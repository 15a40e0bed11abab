"""A plugin may raise anything and return anything: it stays the plugin's own failure."""

import sys

import pytest

from kurma_core.errors import PluginError

NETWORKS = "kurma.networks"
RAISED = {
    "leaves": "raise SystemExit(3)",
    "ends a generator": "raise GeneratorExit",
    "has a root of its own": "class Root(BaseException): pass\nraise Root('up')",
    "is cancelled": "import asyncio\nraise asyncio.CancelledError",
    "is cancelled as kurma's operations are": "from kurma_core.errors import Cancelled\nraise Cancelled",
    "recurses": "def again(): again()\nagain()",
    "has no words": "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute",
    "says much": "raise ValueError('line\\n' * 1000)",
}
RETURNED = {
    "nothing": "return None",
    "a driver of nothing": "return Driver(None)",
    "options that are none": "return Driver(lambda context: None, options=(5,))",
    "no options at all": "return Driver(lambda context: None, options=None)",
    "aliases that are none": "return Driver(lambda context: None, aliases=5)",
    "aliases in one text": "return Driver(lambda context: None, aliases='abc')",
    "a type for a driver": "return Driver(lambda context: type)",
}
HOOK = """
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs import hookimpl

@hookimpl
def kurma_network():
    {}
"""


@pytest.mark.parametrize("trick", RAISED)
@pytest.mark.parametrize("where", ["at its import", "in its hook"])
def test_whatever_it_raises(trick, where, install, registry, network):
    body = RAISED[trick]
    install(
        "kurma-hostile", {"bad": body if where == "at its import" else HOOK.format(body.replace("\n", "\n    "))}
    )
    install("kurma-good", {"good": network})
    plugins = registry()
    for _ in range(2):  # what is remembered is the same failure
        with pytest.raises(PluginError, match=r"network plugin 'bad' of kurma-hostile 1\.0 is broken") as caught:
            plugins.driver(NETWORKS, "bad")
        assert "\n" not in str(caught.value)
        assert caught.value.hint.startswith("this is a mistake in the plugin; `kurma --debug …` shows where")
    assert "bad" not in plugins.drivers(NETWORKS)
    assert plugins.driver(NETWORKS, "good") is not None
    assert plugins.resolve_alias(NETWORKS, "nobody") is None
    (row,) = [info for info in plugins.listing() if info.name == "bad"]
    assert row.status == "failed"


@pytest.mark.parametrize("trick", RETURNED)
def test_whatever_it_returns(trick, install, registry, network):
    install("kurma-hostile", {"bad": HOOK.format(RETURNED[trick])})
    install("kurma-good", {"good": network})
    plugins = registry()
    assert plugins.resolve_alias(NETWORKS, "a") is None
    with pytest.raises(PluginError, match="is broken") as caught:
        plugins.driver(NETWORKS, "bad")
    assert caught.value.hint.startswith("this is a mistake in the plugin")
    assert "good" in plugins.drivers(NETWORKS)


def test_ctrl_c_is_no_failure_of_a_plugin(install, registry):
    """And what was interrupted is not remembered as loaded."""
    install(
        "kurma-hostile",
        {"bad": "import sys\nif sys.kurma_test_interrupt: raise KeyboardInterrupt\nraise ValueError"},
    )
    plugins = registry()
    sys.kurma_test_interrupt = True
    try:
        with pytest.raises(KeyboardInterrupt):
            plugins.driver(NETWORKS, "bad")
        sys.kurma_test_interrupt = False
        with pytest.raises(PluginError, match="ValueError"):
            plugins.driver(NETWORKS, "bad")
    finally:
        del sys.kurma_test_interrupt
