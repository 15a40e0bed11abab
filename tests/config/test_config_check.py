"""What ``kurma config check`` finds, a reload of kurmad refuses, in the same words."""

import json

import pytest

from kurma_core.cli.main import main
from kurma_core.client import Settings
from kurma_core.daemon.kurmad import Daemon

OFF = {"enabled": False}
#: (configuration, words of each problem).
MISTAKES = [
    ({"renderr": "copy"}, ["renderr: unknown key"]),
    ({"renderer": "cpoy"}, ["renderer: no renderer plugin 'cpoy' is installed"]),
    ({"stager": "nobody"}, ["stager: no stager plugin 'nobody' is installed"]),
    ({"stagers": {"mine": {"driver": "gone"}}}, ["stagers.mine.driver: no stager plugin 'gone' is installed"]),
    (
        {"stagers": {"mine": {"driver": "default", "config": {"typo": 1}}}},
        ["stagers.mine.config.typo: unknown key"],
    ),
    ({"stagers": {"mine": {"image": "gone://x/y"}}}, ["stagers.mine.image: no fetcher plugin 'gone'"]),
    (
        {"stagers": {"mine": {"driver": "rkt", "image": "gone://x/y"}}},
        ["stagers.mine.image: no fetcher plugin 'gone'"],
    ),
    ({"stager": "rkt:gone://x/y"}, ["stager: no fetcher plugin 'gone'"]),
    ({"stagers": {"mine": {"image": "oci:x"}}}, ["stagers.mine.image: oci:x: a relative path"]),
    (
        {"container_networks": [{"name": "a", "aci": "gone://x/y"}]},
        ["container_networks.a.aci: no fetcher plugin 'gone'"],
    ),
    (
        {"container_networks": [{"name": "a", "aci": "oci:../x"}]},
        ["container_networks.a.aci: oci:../x: a relative path"],
    ),
    ({"plugins": {"isolators": {"linux": {"config": {"typo": 1}}}}}, ["linux.config.typo: unknown key"]),
    ({"plugins": {"networks": {"gone": {"required": True}}}}, ["no network plugin 'gone' is installed"]),
    ({"plugins": {"services": {"gone": {}}}}, ["no service plugin 'gone' is installed"]),
    ({"plugins": {"renderers": {"overlay": OFF}}}, ["renderer plugin 'overlay' is disabled in"]),
    ({"plugins": {"networks": {"bridge": OFF}}}, ["network plugin 'bridge' is disabled in"]),
    (
        {"renderer": "overlay", "plugins": {"enable": "listed", "networks": {"lo": {}, "bridge": {}}}},
        [
            "renderer plugin 'overlay' is not listed",
            "stager plugin 'default' is not listed",
            "isolator plugin 'linux' is not listed",
        ],
    ),
    (
        {"container_networks": [{"name": "a", "plugin": "gone"}]},
        ["container_networks.a.plugin: no network plugin"],
    ),
    ({"container_networks": [{"name": "a", "plugin": "bridge", "mtu": 1}]}, ["container_networks.a: "]),
    ({"required_isolators": {"example.com/gone": True}}, ["no plugin knows an isolator 'example.com/gone'"]),
    ({"isolator_plugins": {"resource/memory": "gone"}}, ["isolator plugin 'gone' does not know it"]),
    ({"isolator_plugins": {"kurma.io/pids-limit": "gone"}}, ["isolator plugin 'gone' does not know it"]),
    (
        {"required_isolators": {"example.com/gone": True}, "plugins": {"isolators": {"linux": OFF}}},
        [
            "no plugin knows an isolator 'example.com/gone'",
            "required_isolators: apps would lack kurma.io/pids-limit",
        ],
    ),
    (
        {"grants": {"x": {"images": ["example.com/a"], "isolators": ["example.com/gone"]}}},
        ["grants.x.isolators: there is no power 'example.com/gone'"],
    ),
    ({"fetchers": {"paths": "gone"}}, ["fetchers.paths: no fetcher plugin 'gone'"]),
    ({"fetchers": {"names": "gone"}}, ["fetchers.names: no fetcher plugin 'gone'"]),
    ({"initial_pods": ["oci:./x"]}, ["initial_pods[0]: oci:./x: a relative path"]),
    ({"prefetch_images": ["gone://me:hush@x/y"]}, ["prefetch_images[0]: no fetcher plugin 'gone'"]),
    (
        {"initial_pods": [{"name": "web", "apps": [{"name": "web", "image": "gone://x/y"}]}]},
        ["initial_pods[0]: no fetcher plugin 'gone'"],
    ),
    (
        {"prefetch_images": ["docker://x/y"], "plugins": {"fetchers": {"docker": OFF}}},
        ["prefetch_images[0]: fetcher plugin 'docker' is disabled in"],
    ),
]


@pytest.mark.parametrize(("values", "words"), MISTAKES, ids=[words[0][:40] for _, words in MISTAKES])
def test_a_reload_refuses_what_check_refuses(tmp_path, capsys, values, words):
    file, state = tmp_path / "kurma.json", str(tmp_path / "state")
    file.write_text("{}")
    daemon = Daemon(Settings(str(file), state))
    before = daemon.config
    file.write_text(json.dumps(values))

    assert main(["--config", str(file), "--dir", state, "--host", "local", "config", "check"]) == 125
    out, err = capsys.readouterr()
    lines = [line.removeprefix("kurma: ") for line in err.splitlines() if line.startswith("kurma: ")]
    assert out == ""
    assert len(lines) == len(words), lines
    assert all(str(file) in line for line in lines)
    for word in words:
        assert sum(word in line for line in lines) == 1, (word, lines)
    assert not [line for line in lines if line.startswith("default: ")], "the file is named"
    assert "hush" not in err

    report = daemon.reloads.reload()
    assert [problem.message for problem in report.problems] == lines
    assert daemon.config is before


@pytest.mark.parametrize("aci", ["example.com/one", "docker://h/net", "/srv/net.aci", "oci:/srv/net"])
def test_networks_of_images_are_right(tmp_path, capsys, aci):
    file = tmp_path / "kurma.json"
    file.write_text(json.dumps({"container_networks": [{"name": "a", "aci": aci}]}))
    assert main(["--config", str(file), "--dir", str(tmp_path / "state"), "config", "check"]) == 0, capsys


def test_the_default_configuration_is_right(tmp_path, capsys):
    file = tmp_path / "kurma.json"
    file.write_text("{}")
    assert main(["--config", str(file), "--dir", str(tmp_path / "state"), "config", "check"]) == 0
    assert capsys.readouterr().out == f"the configuration is valid: {file}\n"
