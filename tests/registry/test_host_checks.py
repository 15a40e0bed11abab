"""``kurma info --check``: what the host lacks, as the core and plugins tell it."""

import pytest

from kurma_core.client import Settings
from kurma_core.client.local.host_checks import host_checks, of_host
from kurma_core.client.local.managers import Managers
from kurma_core.config import load
from kurma_core.errors import PluginError
from kurma_core.hookspecs.driver import HostCheck

CHECKS = """
import threading
from kurma_core.cancellation import current
from kurma_core.errors import HostError, PluginSkipped
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, HostCheck, Option

@hookimpl
def kurma_network():
    {hook}
    return Driver(lambda context: None, options=(Option("word", str, "a", "any"),))

@hookimpl
def kurma_checks(context):
    {checks}
"""
WORD = "HostCheck('word', True, context.config.get('word', 'none'))"
FOUND = f"return [{WORD}, HostCheck('thing', False, '', 'buy one')]"
HANGS = "gate = threading.Event(); waking = current().waking(gate.set); waking.__enter__(); gate.wait()"


@pytest.fixture
def checked(tmp_path, install):
    """``checked(plugins, text)``: the checks of these plugins, by plugin and name, with that ``kurma.yml``."""

    def check(plugins, text="", patience=5.0):
        install("kurma-test", plugins)
        file = tmp_path / "kurma.yml"
        file.write_text(text)
        managers = Managers(
            Settings(str(file), str(tmp_path / "state"), host="local"), load(str(file), str(tmp_path / "state"))
        )
        found = list(host_checks(managers, patience))
        managers.close()
        return {
            (one.by, one.name): one for one in found if one.by.removeprefix("networks/") in (*plugins, "kurma")
        }

    return check


def source(hook="", checks=FOUND):
    return CHECKS.format(hook=hook or "pass", checks=checks)


def test_the_core_and_plugins_are_asked(checked):
    found = checked({"one": source()}, "plugins: {networks: {one: {config: {word: b}}}}")
    assert ("kurma", "cgroups") in found
    assert found["networks/one", "word"].detail == "b"
    thing = found["networks/one", "thing"]
    assert (thing.ok, thing.hint) == (False, "buy one")


def test_one_that_skips_itself_is_asked(checked):
    found = checked({"one": source("raise PluginSkipped('needs a thing')")})
    assert found["networks/one", "word"].detail == "none"
    found = checked({"two": "from kurma_core.errors import PluginSkipped\nraise PluginSkipped('needs a thing')"})
    assert "cannot work on this host: needs a thing" in found["networks/two", "plugin"].detail


@pytest.mark.parametrize(
    ("checks", "why"),
    [
        ("raise KeyError('x')", "network plugin 'one' of kurma-test 1.0 failed in kurma_checks: KeyError: 'x'"),
        ("raise HostError('no thing', hint='buy one')", "no thing"),
        ("return [True]", "network plugin 'one' of kurma-test 1.0 answered kurma_checks with [True]"),
    ],
)
def test_one_that_fails(checked, checks, why):
    found = checked({"one": source(checks=checks), "two": source()})
    assert not found["networks/one", "plugin"].ok
    assert found["networks/one", "plugin"].detail.startswith(why)
    assert found["networks/two", "word"].ok


def test_one_that_hangs(checked):
    found = checked({"one": source(checks=HANGS), "two": source()}, patience=0.5)
    assert found["networks/one", "plugin"].detail == "it does not answer in time"
    assert found["networks/two", "word"].ok


def test_one_that_is_disabled_is_not_asked(checked):
    found = checked({"one": source("1/0")}, "plugins: {networks: {one: {enabled: false}}}")
    assert [key for key in found if key[0] != "kurma"] == []


def test_a_hook_without_a_mark_or_with_a_wrong_argument_is_refused(install, registry):
    install("kurma-test", {"one": source().replace("@hookimpl\ndef kurma_checks", "def kurma_checks")})
    with pytest.raises(PluginError, match="kurma_checks has the name of a hook: mark it with @hookimpl"):
        registry().options("kurma.networks", "one")
    install("kurma-more", {"two": source().replace("kurma_checks(context)", "kurma_checks(contexd=None)")})
    with pytest.raises(PluginError, match="takes contexd, which its hook does not pass; the nearest is context"):
        registry().options("kurma.networks", "two")


def test_a_plugin_without_the_argument(checked):
    found = checked(
        {"one": source(checks="return [HostCheck('x', True)]").replace("kurma_checks(context)", "kurma_checks()")}
    )
    assert found["networks/one", "x"].ok


def test_a_poor_host(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/filesystems").write_text("nodev\tproc\n\text4\n")
    found = {check.name: check for check in of_host({"cpu": 1}, str(tmp_path))}
    assert found["cgroups"] == HostCheck(
        "cgroups", False, "no controller for memory, pids", "boot with them, see cgroups(7)"
    )
    assert not any(check.ok for check in found.values())
    assert found["overlay"].hint == "modprobe overlay"
