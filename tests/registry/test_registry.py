"""Plugins: found, enabled, configured, loaded when they are needed, and told apart when they are broken."""

import builtins
import os
import subprocess
import sys
import threading

import pytest

from kurma_core.appc.image import Isolator
from kurma_core.config import load
from kurma_core.errors import ConfigError, PluginCollisionError, PluginError, PluginNotFoundError
from kurma_core.hookspecs import GROUPS
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.isolation import compile_isolators, isolator_plugins, powers
from kurma_core.plugins.calls import SlowCalls
from kurma_core.plugins.problems import left_out, problems_of_plugins

NETWORKS = "kurma.networks"
BROKEN = "import nothing_of_this_name"
SKIPPED = "from kurma_core.errors import PluginSkipped\nraise PluginSkipped('needs a moon')"


def row(registry, kind, name, load=True):
    (found,) = [info for info in registry.listing(load) if (info.kind, info.name) == (kind, name)]
    return found


def test_only_what_is_asked_for_is_loaded(install, registry, network):
    site = install("kurma-test", {"one": network, "two": network})
    plugins = registry()
    assert {"one", "two"} <= set(plugins.names(NETWORKS))
    modules = {path.stem for path in site.glob("*.py")}
    assert not modules & set(sys.modules)
    driver = plugins.driver(NETWORKS, "one")
    assert len(modules & set(sys.modules)) == 1
    assert plugins.driver(NETWORKS, "one") is driver


def test_a_driver_is_made_once_by_many_threads(install, registry, network):
    install("kurma-test", {"one": network})
    plugins, together, made = registry(), threading.Barrier(4), []

    def make():
        together.wait()
        made.append(plugins.driver(NETWORKS, "one"))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(map(id, made))) == 1


def test_what_a_driver_is_made_with(install, registry, network, tmp_path):
    install("kurma-test", {"one": network})
    plugins = registry(
        "registries: {insecure: [localhost]}\nauth_dir: /auth\n"
        "plugins: {networks: {one: {config: {size: 7, rate: 2}}}}"
    )
    context = plugins.driver(NETWORKS, "one")._driver.context
    assert context.config == {"size": 7, "rate": 2.0, "names": []}
    assert isinstance(context.config["rate"], float)
    assert context.state_dir == str(tmp_path / "state/plugins/kurma.networks/one")
    assert not os.path.exists(context.state_dir)
    assert context.registries == {"insecure": ["localhost"], "mirrors": {}}
    assert context.auth_dir == "/auth"
    assert context.daemon is False
    context.note("hello")
    assert plugins.told == ["hello"]


def test_drivers_of_a_daemon_are_told_so(install, network, tmp_path):
    from kurma_core.client import Settings
    from kurma_core.daemon.kurmad import Daemon

    install("kurma-test", {"one": network})
    (tmp_path / "kurma.json").write_text("{}")
    daemon = Daemon(Settings(str(tmp_path / "kurma.json"), str(tmp_path / "state")))
    assert daemon.client.here.registry.driver(NETWORKS, "one")._driver.context.daemon is True
    assert daemon.managers.successor(daemon.config).registry.driver(NETWORKS, "one")._driver.context.daemon is True


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{sise: 1}", "plugins.networks.one.config.sise: unknown key; the nearest known one is 'size'"),
        ("{size: big}", 'plugins.networks.one.config.size: expected an integer from 1 to 9, found "big"'),
        ("{size: true}", "plugins.networks.one.config.size: expected an integer from 1 to 9, found true"),
        ("{size: 0}", "plugins.networks.one.config.size: expected an integer from 1 to 9, found 0"),
        (
            "{size: 10}",
            "plugins.networks.one.config.size: expected an integer from 1 to 9, found 10",
        ),
        ("{rate: .nan}", "plugins.networks.one.config.rate: expected a number, found nan"),
        ("{rate: -.inf}", "plugins.networks.one.config.rate: expected a number, found -inf"),
        ("{names: {a: 1}}", "plugins.networks.one.config.names: expected a list, found an object"),
    ],
)
def test_its_section_is_checked(install, registry, network, tmp_path, config, message):
    install("kurma-test", {"one": network})
    plugins = registry(f"plugins: {{networks: {{one: {{config: {config}}}}}}}")
    with pytest.raises(ConfigError) as caught:
        plugins.driver(NETWORKS, "one")
    assert str(caught.value) == f"{tmp_path / 'kurma.yml'}: {message}"
    assert [
        str(error) for error in problems_of_plugins(plugins, plugins._config) if "networks.one" in str(error)
    ] == [str(caught.value)]


def test_a_value_without_text_is_the_default(install, registry, network):
    install("kurma-test", {"one": network})
    assert (
        registry("plugins: {networks: {one: {config: {size: null}}}}")
        .driver(NETWORKS, "one")
        ._driver.context.config["size"]
        == 3
    )


def test_none_of_that_name(install, registry, network):
    install("kurma-test", {"one": network})
    with pytest.raises(PluginNotFoundError, match="no network plugin 'oen' is installed") as caught:
        registry().driver(NETWORKS, "oen")
    assert "one" in caught.value.hint


def test_disabled(install, registry, network, tmp_path):
    install("kurma-test", {"one": network})
    plugins = registry("plugins: {networks: {one: {enabled: false}}}")
    assert "one" not in plugins.names(NETWORKS)
    assert plugins.resolve_alias(NETWORKS, "example.com/one") is None
    with pytest.raises(PluginNotFoundError, match=f"network plugin 'one' is disabled in {tmp_path}/kurma.yml"):
        plugins.driver(NETWORKS, "one")
    assert row(plugins, "networks", "one").status == "disabled"
    assert row(plugins, "networks", "one").reason == f"disabled in {tmp_path}/kurma.yml"
    assert row(plugins, "networks", "one").enable == "plugins: {networks: {one: {enabled: true}}}"


@pytest.mark.parametrize("group", GROUPS)
def test_listed_plugins_alone_are_enabled(install, registry, tmp_path, group):
    install("kurma-test", {"one": "", "two": ""}, group=group)
    kind = group.removeprefix("kurma.")
    plugins = registry(f"plugins: {{enable: listed, {kind}: {{one: {{}}}}}}")
    assert plugins.names(group) == ("one",)
    assert row(plugins, kind, "one", load=False).status == "found"
    off = row(plugins, kind, "two", load=False)
    reason = f"not listed in `plugins`, and {tmp_path}/kurma.yml says `enable: listed`"
    assert (off.status, off.reason) == ("disabled", reason)
    with pytest.raises(PluginNotFoundError, match=f"{kind.removesuffix('s')} plugin 'two' is {reason}") as caught:
        plugins.driver(group, "two")
    assert caught.value.hint == f"enable it: kurma plugins enable {kind} two"
    # The line to paste enables it.
    (tmp_path / "more").mkdir()
    (tmp_path / "more/kurma.yml").write_text(off.enable)
    assert load(str(tmp_path / "more")).plugin(group, "two").enabled
    assert registry("plugins: {enable: listed}\n").names(group) == ()


def test_a_service_needs_a_section(tmp_path):
    (tmp_path / "kurma.d").mkdir()
    config = load(str(tmp_path))
    assert config.plugin("networks", "one").enabled
    assert not config.plugin("kurma.services", "one").enabled


def test_config_check_tells_what_is_used_and_not_listed(registry, tmp_path):
    plugins = registry("plugins: {enable: listed}\nstager: default\nrenderer: overlay")
    found = [error.message for error in problems_of_plugins(plugins, plugins._config)]
    networks = ("network plugin 'lo'", "network plugin 'bridge'")
    used = ("renderer plugin 'overlay'", "stager plugin 'default'", *networks)
    why = f"is not listed in `plugins`, and {tmp_path}/kurma.yml says `enable: listed`"
    assert found == [f"{plugin} {why}" for plugin in used]
    text = "plugins: {enable: listed}\ndefault_networks: [other]"
    plugins = registry(text)
    told = [error.message for error in problems_of_plugins(plugins, plugins._config)]
    assert not any("network plugin 'bridge'" in one for one in told), "no pod joins it unasked"


def test_a_broken_one_stops_nobody_else(install, registry, network):
    install("kurma-test", {"bad": BROKEN, "one": network}, version="2.5")
    plugins = registry()
    message = (
        "network plugin 'bad' of kurma-test 2.5 is broken: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )
    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            plugins.driver(NETWORKS, "bad")
        assert str(caught.value) == message
        assert caught.value.data["plugin"] == "kurma.networks/bad"
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert "one" in plugins.drivers(NETWORKS)
    assert "bad" not in plugins.drivers(NETWORKS)
    assert plugins.told.count(message) == 1, "told once"
    plugins.check_required()
    info = row(plugins, "networks", "bad")
    assert (info.distribution, info.version, info.status, info.reason) == ("kurma-test", "2.5", "failed", message)
    assert row(plugins, "networks", "one").status == "ok"
    assert row(registry(), "networks", "one", load=False).status == "found"
    assert row(plugins, "networks", "one", load=False).status == "ok", "it is used already"


def test_a_required_one_that_is_broken(install, registry, tmp_path):
    install("kurma-test", {"bad": BROKEN})
    plugins = registry("plugins: {networks: {bad: {required: true}}}")
    with pytest.raises(PluginError, match=rf"'bad' .* is broken: .*, and {tmp_path}/kurma.yml requires it"):
        plugins.check_required()
    with pytest.raises(PluginError, match=r"'bad' .* is broken"):
        plugins.drivers(NETWORKS)


def test_a_required_one_that_is_missing(registry, tmp_path):
    plugins = registry("plugins: {networks: {moon: {required: true}}}")
    message = f"no network plugin 'moon' is installed, and {tmp_path}/kurma.yml requires it"
    with pytest.raises(PluginNotFoundError) as caught:
        plugins.check_required()
    assert str(caught.value) == message
    info = row(plugins, "networks", "moon")
    assert (info.distribution, info.status) == (None, "failed")
    assert info.reason == f"not installed, and {tmp_path}/kurma.yml requires it"


def test_skipped(install, registry, network):
    install("kurma-test", {"moon": SKIPPED, "one": network})
    plugins = registry()
    with pytest.raises(PluginError, match=r"'moon' of kurma-test 1\.0 cannot work on this host: needs a moon"):
        plugins.driver(NETWORKS, "moon")
    assert row(plugins, "networks", "moon").status == "skipped"
    assert "needs a moon" in row(plugins, "networks", "moon").reason
    assert "one" in plugins.drivers(NETWORKS)
    assert not [text for text in plugins.told if "moon" in text], "nobody asked for it"


@pytest.mark.parametrize(
    "where",
    ["def __init__(self, context): self.context = context", "    return Driver("],
    ids=["factory", "hook"],
)
def test_skipped_later(install, registry, network, where):
    skip = "from kurma_core.errors import PluginSkipped; raise PluginSkipped('needs a moon')"
    replacement = f"def __init__(self, context): {skip}" if "init" in where else f"    {skip}\n    return Driver("
    install("kurma-test", {"one": network.replace(where, replacement)})
    assert row(registry(), "networks", "one").status == "skipped"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ("def kurma_network()", "def kurma_netwrok()"),
            "kurma_netwrok is not a hook of a plugin's module; the nearest is kurma_network",
        ),
        (
            ("@hookimpl\ndef kurma_network()", "def kurma_netwrok()"),
            "implements no kurma_network hook, which kurma.networks asks for; its function kurma_netwrok is not a",
        ),
        (
            ("def kurma_network()", "def kurma_network(context=None)"),
            "kurma_network takes context, which its hook does not pass",
        ),
        (("def kurma_network()", "def kurma_renderer()"), "implements no kurma_network hook"),
        (("@hookimpl\ndef kurma_network", "def kurma_network"), "kurma_network has the name of a hook: mark it"),
        (("return Driver(", "return dict("), "hook returned {"),
        (
            ("return Driver(", "return Driver(locators='url', "),
            "locators are 'url' instead of one of path, address, name",
        ),
        (
            ("return Driver(", "return Driver(annotations='example.com/', "),
            "annotations are 'example.com/' instead of a",
        ),
        (("return Driver(", "return None and Driver("), "hook returned None instead of a Driver"),
        (("def delete", "def deelete"), "lacks delete"),
        (("self.context = context", "raise SystemExit(3)"), "SystemExit: 3"),
        (("self.context = context", "raise KeyError('x')"), "KeyError: 'x'"),
        (("import Driver", "import Drover, Driver"), "ImportError: cannot import name 'Drover'"),
    ],
)
def test_a_broken_contract(install, registry, network, change, reason):
    install("kurma-test", {"one": network.replace(*change)})
    plugins = registry()
    with pytest.raises(PluginError) as caught:
        plugins.driver(NETWORKS, "one")
    assert str(caught.value).startswith("network plugin 'one' of kurma-test 1.0 is broken: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_distributions_claim_one_name(install, registry, network):
    install("kurma-first", {"one": network}, version="1.1")
    install("kurma-second", {"one": network, "two": network}, version="2.2")
    plugins = registry()
    message = "network plugin 'one' is claimed by kurma-second 2.2 and kurma-first 1.1"
    for ask in (
        lambda: plugins.driver(NETWORKS, "one"),
        lambda: plugins.names(NETWORKS),
        lambda: plugins.drivers(NETWORKS),
        plugins.check_required,
    ):
        with pytest.raises(PluginCollisionError) as caught:
            ask()
        assert str(caught.value) == message
    assert "one: {enabled: false}" in caught.value.hint
    plugins.driver(NETWORKS, "two")
    infos = [info for info in plugins.listing() if info.name == "one"]
    assert [info.distribution for info in infos] == ["kurma-second", "kurma-first"]
    assert {info.status for info in infos} == {"failed"}
    assert {info.reason for info in infos} == {message}
    registry("plugins: {networks: {one: {enabled: false}}}").check_required()


def test_one_distribution_seen_twice_is_one(install, registry, network):
    """As Python imports it: what comes first on the path."""
    install("kurma-test", {"one": network, "gone": network}, version="1.0")
    install("Kurma_Test", {"one": network}, version="2.0")
    plugins = registry()
    plugins.check_required()
    assert row(plugins, "networks", "one").version == "2.0"
    assert "gone" not in plugins.names(NETWORKS)


def test_aliases(install, registry, network):
    install("kurma-test", {"bad": BROKEN, "one": network})
    plugins = registry()
    assert plugins.resolve_alias(NETWORKS, "example.com/one") == "one"
    assert plugins.resolve_alias(NETWORKS, "example.com/other") is None
    install("kurma-other", {"two": network})
    with pytest.raises(PluginCollisionError, match=r"^network alias 'example\.com/one' is claimed by "):
        registry().resolve_alias(NETWORKS, "example.com/one")


def test_what_a_fetcher_declares_is_known_without_a_driver(install, registry, network):
    declared = "return Driver(locators='name', example='memo:NAME', annotations=('example.com/',), "
    source = network.replace("self.context = context", "raise KeyError").replace("return Driver(", declared)
    install("kurma-test", {"one": source})
    found = registry().declaration(NETWORKS, "one")
    assert (found.locators, found.example, found.annotations) == ("name", "memo:NAME", ("example.com/",))


def test_annotations_that_two_distributions_understand(install, registry, network):
    source = network.replace("kurma_network", "kurma_fetcher").replace(
        "return Driver(", "return Driver(annotations=(PREFIX,), "
    )
    first = "PREFIX = 'example.com/one/'\n" + source
    install("kurma-test", {"one": first, "other": first}, group="kurma.fetchers")
    plugins = registry()
    assert plugins.annotation_reader(["created", "example.com/one/a"]) == "one"
    assert plugins.annotation_reader(["example.com/on"]) is None
    install("kurma-other", {"two": "PREFIX = 'example.com/'\n" + source}, group="kurma.fetchers")
    claimed = "^annotation 'example.com/one/a' is claimed by fetcher plugin 'one' of kurma-test 1.0 and .*'two'"
    with pytest.raises(PluginCollisionError, match=claimed):
        registry().annotation_reader(["example.com/one/a"])


@pytest.mark.parametrize("name", ["archive", "built", "plugin", "upload"])
def test_no_fetcher_has_a_scheme_of_the_cores_own(install, registry, network, name):
    source = network.replace("kurma_network", "kurma_fetcher")
    install("kurma-test", {name: source}, group="kurma.fetchers")
    plugins = registry()
    assert row(plugins, "fetchers", name, load=True).status == "failed"
    said = f"^fetcher plugin '{name}' is claimed by kurma-test 1.0 and Kurma itself$"
    with pytest.raises(PluginCollisionError, match=said):
        plugins.driver("kurma.fetchers", name)


def test_options_are_known_without_a_driver(install, registry, network):
    install("kurma-test", {"one": network.replace("self.context = context", "raise KeyError")})
    assert [option.name for option in registry().options(NETWORKS, "one")] == ["size", "rate", "names"]


def test_configured_order(install, registry, network):
    install("kurma-test", {"one": network, "three": network, "two": network})
    names = registry("plugins: {networks: {two: {}, one: {}, none: {}}}").names(NETWORKS)
    ours = [name for name in names if name in ("one", "two", "three")]
    assert ours == ["two", "one", "three"]


def test_config_check_finds_what_is_not_there(install, registry, network):
    install("kurma-test", {"one": network, "bad": BROKEN})
    plugins = registry(
        "renderer: nor\nstager: nos\nstagers: {x: {driver: nod}}\n"
        "container_networks: [{name: a, plugin: none}, {name: b, plugin: one}]\n"
        "plugins: {networks: {bad: {}, gone: {enabled: false}}}\n"
    )
    found = [str(error) for error in problems_of_plugins(plugins, plugins._config)]
    assert sorted(text.split(" is ")[0] for text in found) == [
        "no network plugin 'gone'",
        "no network plugin 'none'",
        "no renderer plugin 'nor'",
        "no stager plugin 'nod'",
        "no stager plugin 'nos'",
    ]
    (bad,) = left_out(plugins, plugins._config)  # nothing needs it
    assert str(bad).startswith("network plugin 'bad' of kurma-test 1.0 is broken: ")


def test_stevedore_leaves_no_cache(tmp_path):
    """Root trusts no cache of entry points that somebody's home directory keeps."""
    program = (
        "from kurma_core.config import load; from kurma_core.plugins.registry import PluginRegistry\n"
        f"registry = PluginRegistry(load(state_dir={str(tmp_path / 'none')!r}))\n"
        "registry.listing(); import sys; assert 'stevedore' in sys.modules"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert os.listdir(tmp_path) == []


def test_looking_up_names_imports_neither_plugins_nor_stevedore(tmp_path):
    program = (
        "from kurma_core.config import load; from kurma_core.plugins.registry import PluginRegistry\n"
        f"names = PluginRegistry(load(state_dir={str(tmp_path / 'none')!r})).names('kurma.networks'); import sys\n"
        "print([m for m in sys.modules if m.startswith(('stevedore', 'kurma_net', 'pyroute2', 'yaml'))], names)"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.startswith("[] (")
    assert "'lo'" in output


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_plugin_of_this_repository_works(registry, group):
    plugins = registry()
    for name in plugins.names(group):
        plugins.driver(group, name)


# --- isolators -------------------------------------------------------------------------------------------------

ISOLATORS = """
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import IsolatorPlan

class Isolators:
    def __init__(self, context): pass
    @hookimpl
    def compile(self, name):
        return Compiled(IsolatorPlan(), amounts="{mark}")
    @hookimpl
    def defaults(self, names):
        return () if "example.com/both" in names else (("example.com/both", 1),)

@hookimpl
def kurma_isolator():
    return Driver(create=Isolators, isolators=({names}), default_isolators=("example.com/both",))
"""


@pytest.fixture
def two_that_claim(install):
    """``example.com/both`` is an isolator of the plugins ``aa`` and ``zz``."""
    for name in ("aa", "zz"):
        source = ISOLATORS.format(names=f'"example.com/both", "example.com/{name}"', mark=name)
        install(f"kurma-{name}", {name: source}, group="kurma.isolators")


def compiled(plugins, *names):
    """By isolator of one app, the plugin that compiled it."""
    app = [Isolator(name, 1) for name in names]
    host = IsolatorHost(cgroups={}, cpus=1)
    return {
        one.name: one.amounts
        for one in compile_isolators(None, {"app": app}, isolator_plugins(plugins), host).reports
        if one.name.startswith("example.com")
    }


def test_an_isolator_that_two_plugins_claim_cannot_be_used(two_that_claim, registry):
    """Asked for, by default, or of a power; the plugins' other isolators can."""
    plugins = registry()
    said = (
        r"^isolator example\.com/both is claimed by isolator plugin 'aa' of kurma-aa 1\.0 "
        r"and isolator plugin 'zz' of kurma-zz 1\.0$"
    )
    for names in (("example.com/both",), ("example.com/aa",), ()):
        with pytest.raises(PluginCollisionError, match=said) as caught:
            compiled(plugins, *names)
        assert "`isolator_plugins: {example.com/both: aa}`" in caught.value.hint
    with pytest.raises(PluginCollisionError, match=said):
        powers([Isolator("example.com/both", 1)], isolator_plugins(plugins), "app", IsolatorHost({}, 1))
    problems = problems_of_plugins(plugins, plugins._config)
    assert [problem.message for problem in problems] == [str(caught.value)]


@pytest.mark.parametrize("chosen", ["aa", "zz"])
def test_the_configuration_names_the_plugin_of_an_isolator(two_that_claim, registry, chosen):
    plugins = registry(f"isolator_plugins: {{example.com/both: {chosen}}}")
    assert compiled(plugins, "example.com/aa", "example.com/zz") == {
        "example.com/both": chosen,
        "example.com/aa": "aa",
        "example.com/zz": "zz",
    }
    assert problems_of_plugins(plugins, plugins._config) == ()
    off = f"plugins: {{isolators: {{{chosen}: {{enabled: false}}}}}}"
    gone = registry(f"isolator_plugins: {{example.com/both: {chosen}}}\n{off}")
    (problem,) = problems_of_plugins(gone, gone._config)
    assert f"isolator_plugins.example.com/both: isolator plugin '{chosen}' does not know it" in problem.message
    assert compiled(gone, "example.com/both") == {"example.com/both": ""}, "ignored"


def test_config_check_finds_what_is_in_use_and_disabled_and_what_is_there_twice(install, registry, network):
    """And options that the driver of a stager's section does not know."""
    install("kurma-first", {"one": network})
    install("kurma-second", {"one": network})
    plugins = registry(
        "stagers: {mine: {driver: default, config: {graphStorge: copy}}}\n"
        "container_networks: [{name: a, plugin: lo}]\n"
        "required_isolators: {kurma.io/pid-limit: false}\n"
        "plugins: {renderers: {overlay: {enabled: false}}, stagers: {default: {enabled: false}},\n"
        "  networks: {lo: {enabled: false}, cni: {enabled: false}}, fetchers: {gone: {required: true}}}\n"
    )
    found = [error.message for error in problems_of_plugins(plugins, plugins._config)]
    for words in (
        "renderer plugin 'overlay' is disabled in ",
        "stager plugin 'default' is disabled in ",
        "network plugin 'lo' is disabled in ",
        "no fetcher plugin 'gone' is installed",
        "network plugin 'one' is claimed by kurma-",
        "required_isolators: no plugin knows an isolator 'kurma.io/pid-limit'",
    ):
        assert sum(words in text for text in found) == 1, (words, found)
    assert len(found) == 6
    wrong = registry("stagers: {mine: {driver: default, config: {graphStorge: copy}}}")
    said = "stagers.mine.config.graphStorge: unknown key; the nearest known one is 'graphStorage'"
    assert any(said in error.message for error in problems_of_plugins(wrong, wrong._config))
    wrong = registry("stagers: {mine: {driver: default, config: {graphStorage: cpy}}}")
    said = 'stagers.mine.config.graphStorage: expected one of "", "overlay", "copy", "given", found "cpy"'
    assert any(said in error.message for error in problems_of_plugins(wrong, wrong._config))


def test_a_mistyped_group_is_told(install, registry, network):
    install("kurma-test", {"one": network}, group="kurma.network")
    plugins = registry()
    info = row(plugins, "network", "one")
    assert (info.distribution, info.status) == ("kurma-test", "failed")
    assert info.reason == "there is no group kurma.network; the nearest is kurma.networks"
    with pytest.raises(PluginNotFoundError) as caught:
        plugins.driver(NETWORKS, "one")
    assert caught.value.hint == f"kurma-test 1.0 has one of that name, but {info.reason}"


def test_a_disabled_driver_takes_down_and_does_nothing_else(install, registry, network):
    install("kurma-test", {"one": network})
    plugins = registry("plugins: {networks: {one: {enabled: false}}}")
    assert plugins.driver(NETWORKS, "one", teardown=True) is not None
    with pytest.raises(PluginNotFoundError, match="is disabled in"):
        plugins.driver(NETWORKS, "one")
    with pytest.raises(PluginNotFoundError, match="no network plugin 'gone' is installed"):
        plugins.driver(NETWORKS, "gone", teardown=True)


INSTEAD = "; network plugin 'one' cleans up after pods with default options"


def test_a_driver_with_wrong_options_takes_down_without_them(install, registry, network, tmp_path):
    install("kurma-test", {"one": network})
    plugins = registry("plugins: {networks: {one: {config: {size: big, rate: 2}}}}")
    place = f"{tmp_path}/kurma.yml: plugins.networks.one.config.size"
    message = f'{place}: expected an integer from 1 to 9, found "big"'
    driver = plugins.driver(NETWORKS, "one", teardown=True)
    assert driver._driver.context.config == {"size": 3, "rate": 2.0, "names": []}
    assert plugins.driver(NETWORKS, "one", teardown=True) is driver
    assert plugins.told == [message + INSTEAD]
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            plugins.driver(NETWORKS, "one")
        assert caught.value.message == message


@pytest.mark.parametrize("refused", ["{2.0}", "{1.0, 2.0}"])
def test_a_driver_that_refuses_its_options_takes_down_with_the_defaults(install, registry, network, refused):
    made = f"""
        self.context = context
        from kurma_core.errors import ConfigError
        if context.config["rate"] in {refused}: raise ConfigError("not this rate")
"""
    install("kurma-test", {"one": network.replace("self.context = context", made)})
    plugins = registry("plugins: {networks: {one: {config: {rate: 2}}}}")
    if "1.0" in refused:
        with pytest.raises(ConfigError, match="not this rate"):
            plugins.driver(NETWORKS, "one", teardown=True)
        assert plugins.told == []
    else:
        assert plugins.driver(NETWORKS, "one", teardown=True)._driver.context.config["rate"] == 1.0
        assert plugins.told == ["not this rate" + INSTEAD]


STAGER = """
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.stager import StagerImageHooks

class Stager(StagerImageHooks):
    def __init__(self, context): pass
    @hookimpl
    def fingerprint(self): return "1"
    @hookimpl
    def build(self, rootfs): raise NotImplementedError
    @hookimpl
    def export_formats(self): return ("tall", "short")
    @hookimpl
    def export(self, format, rootfs):
        return {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/" + format}

@hookimpl
def kurma_stager():
    return Driver(Stager)
"""


def test_one_of_several_export_formats_is_named(install, run_kurma, tmp_path):
    install("kurma-test", {"hats": STAGER}, group="kurma.stagers")
    words = f"stager export --stager hats {tmp_path}/image.aci"
    assert run_kurma(words) == (
        2,
        "",
        "kurma: stager hats can be exported in several formats\n  hint: --format takes short, tall\n",
    )
    code, ident, err = run_kurma(f"{words} --format tall")
    assert (code, err) == (0, "")
    assert ident.startswith("sha512-")


def test_a_plugin_whose_import_takes_long_is_named(install, registry, network):
    """A listing loads every plugin, also those that the user does not think of."""
    source = "import builtins; builtins.kurma_test_gate.wait(20)\n" + network
    install("kurma-sleepy", {"sleepy": source})
    made = registry()
    made._slow = SlowCalls(lambda text: (made.told.append(text), builtins.kurma_test_gate.set()), after=0.05)
    builtins.kurma_test_gate = threading.Event()
    try:
        (row,) = [row for row in made.listing() if row.name == "sleepy"]
        assert builtins.kurma_test_gate.is_set()
    finally:
        del builtins.kurma_test_gate
    assert row.status == "ok"
    assert made.told == ["network plugin 'sleepy' of kurma-sleepy 1.0: its import has taken 0 s"]
