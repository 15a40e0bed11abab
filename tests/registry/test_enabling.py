"""``kurma plugins enable`` and ``disable``: one file of ``kurma.d``, checked before it is written."""

import os

import pytest

from kurma_core.cli.main import main
from kurma_core.client import Settings
from kurma_core.client.local.managers import Managers, problems
from kurma_core.config import load

pytestmark = pytest.mark.root


@pytest.fixture
def etc(tmp_path):
    """A configuration directory."""
    (tmp_path / "etc/kurma.d").mkdir(parents=True)
    return tmp_path / "etc"


@pytest.fixture
def plugins(etc, tmp_path, capfd, install, network):
    """``plugins("enable", "networks", "one")``: exit code, standard output, standard error."""
    install("kurma-test", {"one": network})
    (tmp_path / "state").mkdir()

    def run(*words, config=etc):
        code = main(["--dir", str(tmp_path / "state"), "--config", str(config), "plugins", *words])
        return code, *capfd.readouterr()

    return run


def enabled(etc):
    return load(str(etc)).plugin("networks", "one").enabled


def test_disabled_and_enabled_again(plugins, etc):
    file = etc / "kurma.d/50-plugins.yml"
    assert plugins("disable", "networks", "one") == (0, f"disabled networks/one in {file}\n", "")
    assert not enabled(etc)
    assert file.stat().st_mode & 0o777 == 0o644
    assert file.read_text() == (
        "# written by kurma plugins enable|disable\nplugins:\n  networks:\n    one:\n      enabled: false\n"
    )
    # The kind in the singular; what the file has besides stays.
    assert plugins("disable", "fetcher", "docker")[0] == 0
    assert plugins("enable", "network", "one") == (0, f"enabled networks/one in {file}\n", "")
    assert enabled(etc)
    assert not load(str(etc)).plugin("fetchers", "docker").enabled


def test_listed(plugins, etc):
    (etc / "kurma.yml").write_text("plugins: {enable: listed}")
    assert not enabled(etc)
    _, out, _ = plugins("list")
    assert "# to enable it: plugins: {networks: {one: {enabled: true}}}\n" in out
    assert plugins("enable", "networks", "one")[0] == 0
    assert enabled(etc)
    _, out, _ = plugins("list")
    assert "plugins: {networks: {one: {enabled: true}}}" not in out


def test_a_later_file_that_says_otherwise(plugins, etc):
    later = etc / "kurma.d/90-site.yml"
    later.write_text("plugins: {networks: {one: {enabled: true}}}")
    code, out, err = plugins("disable", "networks", "one")
    assert (code, out) == (125, "")
    assert err == f"kurma: cannot disable networks/one: {later}, which is read later, says otherwise\n"
    assert os.listdir(etc / "kurma.d") == ["90-site.yml"]


def test_a_configuration_that_would_be_wrong_is_not_written(plugins, etc):
    (etc / "kurma.yml").write_text("renderr: copy")
    code, out, err = plugins("disable", "networks", "one")
    assert (code, out) == (125, "")
    assert "unknown key" in err
    assert os.listdir(etc / "kurma.d") == []


def test_it_does_not_overwrite_a_file_that_it_has_not_written(plugins, etc):
    file = etc / "kurma.d/50-plugins.yml"
    file.write_text("plugins: {networks: {one: {enabled: true}}}\n")
    code, _, err = plugins("disable", "networks", "one")
    assert code == 125
    assert err.splitlines() == [
        f"kurma: cannot disable networks/one: {file} was not written by this command",
        "  hint: rename it; this command writes that file anew",
    ]
    assert enabled(etc)


def test_a_single_file(plugins, etc):
    file = etc / "kurma.yml"
    file.write_text("{}")
    code, _, err = plugins("disable", "networks", "one", config=file)
    assert code == 2
    assert err.splitlines() == [
        f"kurma: cannot disable networks/one: the configuration is the single file {file}",
        "  hint: write there: plugins: {networks: {one: {enabled: false}}}",
    ]
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (("networcs", "one"), 2, "unknown kind of plugin 'networcs'", "did you mean networks? kinds: fetchers, "),
        (("networks", "oen"), 125, "no network plugin 'oen' is installed", "did you mean one?"),
    ],
)
def test_names_that_do_not_exist(plugins, etc, words, code, message, hint):
    found, _, err = plugins("enable", *words)
    assert found == code
    assert err.startswith(f"kurma: {message}\n  hint: {hint}")
    assert os.listdir(etc / "kurma.d") == []


def test_an_uninstalled_plugin_that_is_listed_can_be_disabled(plugins, etc):
    (etc / "kurma.yml").write_text("plugins: {networks: {gone: {required: true}}}")
    assert plugins("enable", "networks", "gone")[0] == 125
    assert plugins("disable", "networks", "gone")[0] == 0
    assert not load(str(etc)).plugin("networks", "gone").enabled


def test_disabling_an_uninstalled_plugin_removes_the_section_of_this_command(plugins, etc):
    """A section of a plugin that is not installed is an error, also if it is disabled: it may be mistyped."""
    file = etc / "kurma.d/50-plugins.yml"
    assert plugins("disable", "networks", "one")[0] == 0
    file.write_text(file.read_text().replace("one", "gone"))
    assert "networks.gone: no network plugin 'gone' is installed" in check(etc)
    assert plugins("disable", "networks", "gone") == (0, f"disabled networks/gone in {file}\n", "")
    assert "gone" not in file.read_text()
    assert "gone" not in check(etc)


def check(etc):
    config = load(str(etc))
    return "\n".join(str(problem) for problem in problems(Managers(Settings(), config)))


def test_what_uses_a_disabled_plugin_is_told(plugins, etc):
    code, out, err = plugins("disable", "renderers", "overlay")
    assert (code, out) == (0, f"disabled renderers/overlay in {etc}/kurma.d/50-plugins.yml\n")
    assert f"renderer plugin 'overlay' is disabled in {etc}/kurma.d/50-plugins.yml" in err


def test_what_lacks_a_disabled_plugin_is_told(plugins, etc):
    """Also if the configuration does not name the plugin; what was wrong before is not told again."""
    (etc / "kurma.yml").write_text("prefetch_images: ['gone://x']")
    off = f"is disabled in {etc}/kurma.d/50-plugins.yml"
    _, _, err = plugins("disable", "isolators", "linux")
    assert "required_isolators: apps would lack " in err
    assert f"isolator plugin 'linux' {off}" in err
    assert "gone" not in err
    _, _, err = plugins("disable", "fetchers", "file")
    assert err == "kurma: images by paths cannot be fetched: fetchers.paths is file\n"
    _, _, err = plugins("disable", "fetchers", "docker")
    assert err == ""
    assert plugins("enable", "fetchers", "file")[2] == ""
    (etc / "kurma.yml").write_text("fetchers: {paths: file}")
    _, _, err = plugins("disable", "fetchers", "file")
    assert err == f"kurma: {etc}/kurma.yml: fetchers.paths: fetcher plugin 'file' {off}\n"


def test_a_write_that_was_killed_leaves_the_old_file(plugins, etc):
    """What a killed command leaves is not read, and the next command replaces the file all the same."""
    assert plugins("disable", "networks", "one")[0] == 0
    (etc / "kurma.d/50-plugins.yml.4711.tmp").write_text("# written by")
    assert not enabled(etc)
    assert plugins("enable", "networks", "one")[0] == 0
    assert enabled(etc)


STARTS = """
    def __init__(self, context):
        argv = ("/bin/true",)
        started = context.start_program(HostProgram(argv, {}, "/"))
        os.waitpid(started.pid, 0)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("plugins", "enable", "networks", "one"),
        ("network", "create", "--driver", "one", "shop"),
        ("network", "rm", "old"),
    ],
)
def test_nothing_that_a_plugin_has_started_stays(words, etc, tmp_path, install, network):
    """Plugins are loaded for the old and the new configuration; a plugin may have a program started, for which the
    command starts the spawner."""
    source = network.replace("    def __init__(self, context): self.context = context\n", STARTS)
    source = source.replace("import Driver, ", "import Driver, HostProgram, ")
    install("kurma-test", {"one": f"import os\n{source}"})
    (tmp_path / "state").mkdir()
    (etc / "kurma.d/50-networks.yml").write_text(
        "# written by kurma network create|rm\ncontainer_networks: [{name: old, plugin: one}]\n"
    )
    before = children()
    assert main(["--dir", str(tmp_path / "state"), "--config", str(etc), *words]) == 0
    assert children() == before


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read()
