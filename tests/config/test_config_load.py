"""``kurma.yml``, its drop-ins and what wins."""

import json
import sys

import pytest

from kurma_core import config as configuration
from kurma_core.client.local.managers import run_dir_hint
from kurma_core.config import load
from kurma_core.config.schema import KINDS
from kurma_core.errors import ConfigError
from kurma_core.hookspecs import GROUPS

# The example of the Kurma Network Specification, Kurma Configuration (W1), as it stands there.
DOCUMENT = """\
{
  "container_networks": [
    {
      "name": "lo",
      "aci": "apcera.com/kurma/lo-netplugin"
    },
    {
      "name": "mynet",
      "aci": "apcera.com/kurma/cni-netplugin",
      "containerInterface": "eth0",
      "type": "bridge",
      "bridge": "mynet0",
      "isGateway": true,
      "ipMasq": true,
      "ipam": {
        "type": "host-local",
        "subnet": "10.10.0.0/16",
        "routes": [ { "dst": "0.0.0.0/0" } ]
      }
    }
  ]
}
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "kurma.d").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", ["kurma.json", "kurma.yml", "kurma.yaml"])
def test_the_documents_example_loads_unchanged(tmp_path, name):
    (tmp_path / name).write_text(DOCUMENT)
    for source in (tmp_path, tmp_path / name):
        lo, mynet, default = load(str(source)).container_networks
        assert (default.name, default.plugin) == ("default", "bridge")
        assert (lo.name, lo.aci, lo.plugin, lo.container_interface) == (
            "lo",
            "apcera.com/kurma/lo-netplugin",
            None,
            None,
        )
        assert lo.config == {}
        assert (mynet.name, mynet.aci, mynet.container_interface) == (
            "mynet",
            "apcera.com/kurma/cni-netplugin",
            "eth0",
        )
        assert mynet.default is False
        assert mynet.optional is False
        assert mynet.config == {
            "type": "bridge",
            "bridge": "mynet0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
        }


def test_nothing_configured_is_a_configuration(directory):
    config = load(str(directory))
    assert (config.renderer, config.stager, config.state_dir) == ("overlay", "default", "/var/lib/kurma")
    assert config.config_files == ()
    assert config.trust == {
        "named": "signed",
        "https": "signed",
        "http": "signed",
        "registry": "digest",
        "file": "any",
    }
    assert set(config.origins.values()) == {"default", "beside the configuration"}
    assert config.plugin("kurma.networks", "cni").enabled


def test_no_file_needs_no_yaml(directory):
    import subprocess

    program = (
        f"import sys; from kurma_core.config import load; load({str(directory)!r}); print('yaml' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"


def test_later_files_win(directory):
    (directory / "kurma.yml").write_text(
        "renderer: copy\nregistries: {insecure: [a, b], mirrors: {quay.io: [m1]}}\nstart_timeout: 5\n"
        "plugins: {networks: {cni: {config: {bin_dirs: [/one], nested: {a: 1, b: 2}}}}}\n"
    )
    (directory / "kurma.d/10.json").write_text(
        json.dumps({"registries": {"insecure": ["c"], "mirrors": {"docker.io": ["m2"]}}, "start_timeout": 6})
    )
    (directory / "kurma.d/20.yaml").write_text(
        "start_timeout: 1m30s\nplugins: {networks: {cni: {required: true, config: {nested: {b: 3}}}}}\nrenderer:\n"
    )
    (directory / "kurma.d/30.yml.off").write_text("renderer: [wrong")
    config = load(str(directory))
    assert config.renderer == "copy", "a key without a value says nothing"
    assert config.registries.insecure == ("c",), "lists are replaced"
    assert config.registries.mirrors == {"quay.io": ("m1",), "docker.io": ("m2",)}, "mappings are merged"
    assert config.start_timeout == 90
    section = config.plugin("kurma.networks", "cni")
    assert (section.enabled, section.required) == (True, True)
    assert section.config == {"bin_dirs": ["/one"], "nested": {"a": 1, "b": 3}}
    files = [str(directory / name) for name in ("kurma.yml", "kurma.d/10.json", "kurma.d/20.yaml")]
    assert config.config_files == tuple(files)
    assert config.origins["renderer"] == files[0]
    assert config.origins["registries.insecure"] == files[1]
    assert config.origins["start_timeout"] == files[2]
    assert config.origins["plugins.networks.cni.config.nested.a"] == files[0]
    assert config.origins["plugins.networks.cni.config.nested.b"] == files[2]
    assert config.origins["plugins.networks.cni.enabled"] == "default"


def test_required_isolators_are_merged_over_the_default(directory):
    """X4, X5: what is not named stays required."""
    every = ["kurma.io/pids-limit", "kurma.io/seccomp-profile", "os/linux/capabilities-remove-set"]
    assert sorted(load(str(directory)).required_under("default")) == every
    (directory / "kurma.yml").write_text(
        "required_isolators: {kurma.io/pids-limit: false, resource/memory: true}\n"
        "stagers: {rkt: {driver: rkt, without_isolators: true}, other: {image: /x.aci, without_isolators: true},\n"
        "  mine: {image: /y.aci}}\n"
    )
    config = load(str(directory))
    assert config.required_isolators == {
        "kurma.io/pids-limit": False,
        "kurma.io/seccomp-profile": True,
        "os/linux/capabilities-remove-set": True,
        "resource/memory": True,
    }
    assert config.origins["required_isolators.kurma.io/seccomp-profile"] == "default"
    assert config.origins["required_isolators.resource/memory"] == str(directory / "kurma.yml")
    wanted = frozenset([*every[1:], "resource/memory"])
    under = {
        name: config.required_under(name) for name in ("default", "mine", "other", "other:x", "rkt", "rkt:/i.aci")
    }
    none = dict.fromkeys(("other", "rkt", "rkt:/i.aci"), frozenset())
    assert under == {"default": wanted, "mine": wanted, "other:x": wanted, **none}


def test_networks_are_merged_by_name(directory):
    (directory / "kurma.yml").write_text(DOCUMENT)
    (directory / "kurma.d/a.yml").write_text(
        "container_networks: [{name: mynet, plugin: cni, default: true, type: ptp}, {name: new, plugin: lo}]\n"
    )
    config = load(str(directory))
    networks = config.container_networks
    assert [network.name for network in networks] == ["lo", "mynet", "new", "default"]
    assert [config.is_built_in(network.name) for network in networks] == [False, False, False, True]
    assert config.joined_by_default == ("mynet",)
    assert [network.name for network in config.networks_in_use] == ["lo", "mynet", "new"]
    assert networks[1].plugin == "cni"
    assert networks[1].aci is None
    assert networks[1].default
    assert networks[1].config == {"type": "ptp"}, "an entry is replaced as a whole"


def test_a_file_is_read_alone(directory):
    (directory / "kurma.yml").write_text("renderer: copy\n")
    (directory / "kurma.d/a.yml").write_text("stager: other\n")
    assert load(str(directory / "kurma.yml")).stager == "default"
    assert load(str(directory)).stager == "other"


def test_the_command_line_wins(directory, tmp_path):
    (directory / "kurma.yml").write_text("state_dir: /elsewhere\nrun_dir: /run/other\n")
    config = load(str(directory), str(tmp_path / "state"))
    assert config.state_dir == str(tmp_path / "state")
    assert config.run_dir == str(tmp_path / "state/run")
    assert config.trustedkeys == (str(tmp_path / "state/trustedkeys"),)
    assert config.origins["state_dir"] == "command line"
    assert load(str(directory), "x", state_dir_origin="environment").origins["state_dir"] == "environment"
    (directory / "kurma.yml").write_text("trustedkeys: [/keys]\n")
    assert load(str(directory), str(tmp_path / "state")).trustedkeys == ("/keys",)


def test_the_run_directory_follows_the_state_directory(directory):
    (directory / "kurma.yml").write_text("state_dir: /elsewhere\n")
    config = load(str(directory))
    assert config.run_dir == "/elsewhere/run"
    assert config.origins["run_dir"] == str(directory / "kurma.yml")


def test_who_names_the_run_directory_is_told(directory, tmp_path):
    """Whoever has said where the state is has said where the daemon's socket is, unless somebody said that."""
    hint = "it is in the state directory, which --dir, KURMA_DIR or `state_dir` in kurma.yml name"
    assert run_dir_hint(load(str(directory), "/proc/x")) == hint
    (directory / "kurma.yml").write_text("state_dir: /var/other\n")
    assert run_dir_hint(load(str(directory))) == hint
    (directory / "kurma.yml").write_text("run_dir: /var/other\n")
    assert run_dir_hint(load(str(directory))) == "`run_dir` in kurma.yml names it"


def test_the_value_says_what_a_file_could_say(directory, tmp_path):
    """What ``kurma config show`` prints is a configuration itself, and means the same."""
    (directory / "kurma.yml").write_text(DOCUMENT)
    (directory / "kurma.d/a.yml").write_text(
        "log: {size: 2Mi, count: 3}\nlimits: {total_size: 1G, ratio: 50}\nstop_timeout: 500ms\n"
        "stagers: {mine: {image: file:///x.aci, config: {a: 1}}, rkt: {driver: rkt}}\n"
        "host_image_digests: {'docker:///x/y': 'sha256:" + "0" * 64 + "'}\n"
        "trusted_host_keys: [0123 4567 89ab cdef 0123 4567 89AB CDEF 0123 4567]\ntrust: {http: any}\n"
    )
    config = load(str(directory))
    assert (config.log.size, config.log.count) == (2 << 20, 3)
    assert (config.limits.total_size, config.limits.ratio) == (10**9, 50.0)
    assert config.stop_timeout == 0.5
    assert config.trusted_host_keys == ("0123456789ABCDEF0123456789ABCDEF01234567",)
    assert config.stagers["mine"].image == "file:///x.aci"
    assert config.stagers["mine"].config == {"a": 1}
    assert config.stagers["rkt"].driver == "rkt"
    printed = tmp_path / "printed.json"
    printed.write_text(json.dumps(config.to_json()))
    again = load(str(printed))
    assert again.to_json() == config.to_json()
    assert again.container_networks == config.container_networks
    assert again.stagers == config.stagers


def test_defaults_are_not_shared(directory):
    load(str(directory)).to_json()["registries"]["insecure"].append("x")
    load(str(directory)).to_json()["plugins"]["networks"]["x"] = {}
    assert load(str(directory)).registries.insecure == ()
    assert load(str(directory)).to_json()["plugins"]["networks"] == {}


def test_it_is_frozen(directory):
    config = load(str(directory))
    with pytest.raises(AttributeError):
        config.renderer = "x"
    for mapping in (config.plugins, config.trust, config.origins, config.values):
        with pytest.raises(TypeError):
            mapping["x"] = "y"


def test_credentials_lie_beside_the_files(directory):
    """Also before the directory exists: ``kurma login`` creates it."""
    (directory / "kurma.yml").write_text("")
    for named in (directory, directory / "kurma.yml"):
        config = load(str(named))
        assert config.auth_dir == str(directory / "auth.d")
        assert config.origins["auth_dir"] == "beside the configuration"
    (directory / "kurma.yml").write_text("auth_dir: /credentials\n")
    assert load(str(directory)).auth_dir == "/credentials"


def test_kinds_are_those_of_the_hooks():
    assert tuple(f"kurma.{kind}" for kind in KINDS) == tuple(GROUPS)


def test_the_default_directory_may_be_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(configuration, "CONFIG_DIR", str(tmp_path / "none"))
    assert load().config_files == ()


def test_a_named_file_may_not_be_missing(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        load(str(tmp_path / "none.yml"))
