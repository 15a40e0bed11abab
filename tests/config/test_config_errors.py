"""What is wrong in a file is told with the file, the place, and what would be right."""

import os
from itertools import pairwise

import pytest

from kurma_core.config import load
from kurma_core.config.schema import duration
from kurma_core.errors import ConfigError


def failing(tmp_path, text, name="kurma.yml"):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert caught.value.data["file"] == str(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(file) + ": ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rendrer: x", "rendrer: unknown key; the nearest known one is 'renderer'"),
        ("log: {sise: 1}", "log.sise: unknown key; the nearest known one is 'size'"),
        ("plugins: {network: {}}", "plugins.network: unknown key; the nearest known one is 'networks'"),
        (
            "plugins: {networks: {cni: {enable: false}}}",
            "plugins.networks.cni.enable: unknown key; the nearest known one is 'enabled'",
        ),
        ("stagers: {x: {imge: y}}", "stagers.x.imge: unknown key; the nearest known one is 'image'"),
        ("trust: {ftp: any}", "trust.ftp: unknown key"),
        ("nope: 1", "nope: unknown key"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path, text, message):
    assert failing(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("initial_pods: web", 'initial_pods: expected a list, found "web"'),
        ("initial_pods: [5]", "initial_pods[0]: expected an image's locator, or a pod template with a name"),
        (
            "initial_pods: [{apps: []}]",
            "initial_pods[0]: expected an image's locator, or a pod template with a name",
        ),
        ("initial_pods: [{name: A B, apps: []}]", "initial_pods[0].name: 'A B' is not a valid pod name"),
        ("initial_pods: [{name: names, apps: []}]", "initial_pods[0].name: 'names' is not a valid pod name"),
        ("initial_pods: [{name: web}]", "initial_pods[0]: invalid manifest: $.apps: expected a list of apps"),
        ("initial_pods: [{name: web, apps: [], ap: 1}]", "initial_pods[0]: unknown key $.ap"),
        ("initial_pods: [a/b, c, a/b]", "initial_pods[2]: a/b is given twice"),
        (
            "initial_pods: [a/b, ./x/none.aci]",
            "initial_pods[1]: './x/none.aci' is a relative path, and a configuration is read from anywhere",
        ),
        ("initial_pods: [none.aci]", "initial_pods[0]: 'none.aci' is a relative path"),
        (
            "initial_pods: [{name: web, apps: [{name: a, image: /a.aci}, {name: b, image: ../b.aci}]}]",
            "initial_pods[0].apps[1].image: '../b.aci' is a relative path",
        ),
        ("prefetch_images: [docker:///a, ./x.aci]", "prefetch_images[1]: './x.aci' is a relative path"),
        ("initial_pods: ['x://u:p@h/b', 'x://u:p@h/b']", "initial_pods[1]: the same is given twice"),
        ("stagers: {x: {image: ./x.aci}}", "stagers.x.image: './x.aci' is a relative path"),
        ("stagers: {x: {driver: y, image: x.aci}}", "stagers.x.image: 'x.aci' is a relative path"),
        ("container_networks: [{name: a, aci: ../x}]", "container_networks.a.aci: '../x' is a relative path"),
        ("prefetch_images: [5]", "prefetch_images[0]: expected text that is not empty, found 5"),
        ("userns: always", 'userns: expected none, auto, or UID:COUNT with a UID from 1 on, found "always"'),
        ("userns: '0:100'", "userns: expected none, auto, or UID:COUNT"),
        ("userns_pool: {first: 0}", "userns_pool.first: expected an integer from 1, found 0"),
        ("userns_pool: {first: 4294967295, count: 1}", "userns_pool.count: it leads beyond the largest id"),
        ("userns_pool: {first: 4100000000}", "userns_pool.count: it leads beyond the largest id"),
        ("userns_pool: {count: 65535}", "userns_pool.size: it is more than the pool's 65535 ids"),
        ("renderer: 1", "renderer: expected text that is not empty, found 1"),
        ("renderer: ''", 'renderer: expected text that is not empty, found ""'),
        ("state_dir: here", 'state_dir: expected an absolute path, found "here"'),
        ("start_timeout: fast", "start_timeout: expected a time"),
        ("start_timeout: -1", "start_timeout: expected a time"),
        ("start_timeout: true", "start_timeout: expected a time"),
        ("log: {size: 1.5}", "log.size: expected a size"),
        ("log: {size: 1Q}", "log.size: expected a size"),
        ("log: {size: -1}", "log.size: expected a size"),
        ("log: {count: 0}", "log.count: expected an integer from 1, found 0"),
        ("log: [1]", "log: expected an object, found a list"),
        ("registries: {insecure: host}", 'registries.insecure: expected a list, found "host"'),
        ("registries: {mirrors: b}", 'registries.mirrors: expected an object, found "b"'),
        ("registries: {mirrors: {a: b}}", 'registries.mirrors.a: expected a list, found "b"'),
        (
            "registries: {mirrors: {a: [b, 'https://b']}}",
            'registries.mirrors.a[1]: expected host[:port], without https:// or a path, found "https://b"',
        ),
        ("registries: {mirrors: {a: [b/team]}}", "registries.mirrors.a[0]: expected host[:port]"),
        ("registries: {mirrors: {a: ['b:99999']}}", "registries.mirrors.a[0]: expected host[:port]"),
        (
            "registries: {mirrors: {'a/b': [b]}}",
            'registries.mirrors["a/b"]: expected host[:port], without https:// or a path, found "a/b"',
        ),
        ("registries: {insecure: ['a:port']}", "registries.insecure[0]: expected host[:port]"),
        ("registries: {insecure: [a, '']}", "registries.insecure[1]: expected host[:port]"),
        ("registries: {insecure: ['a:0']}", "registries.insecure[0]: expected host[:port]"),
        ("trustedkeys: [/a, b]", 'trustedkeys[1]: expected an absolute path, found "b"'),
        ("limits: {total_size: 0}", "limits.total_size: expected a size above 0"),
        ("limits: {ratio: .inf}", "limits.ratio: expected a number above 0"),
        ("trust: {http: maybe}", 'trust.http: expected one of signed, digest, any, found "maybe"'),
        ("trusted_host_keys: [ABC]", "trusted_host_keys[0]: expected a key's fingerprint (40 or"),
        ("host_image_digests: {x: 'sha256:0'}", "host_image_digests.x: expected a sha256:… or sha512-… digest"),
        ("plugins: {networks: {cni: {enabled: 1}}}", "plugins.networks.cni.enabled: expected true or false"),
        ("stagers: {x: {config: {a: 1}}}", "stagers.x: it has neither `image` nor `driver`"),
        ("stagers: [x]", "stagers: expected an object, found a list"),
        ("base_networks: []", "base_networks: a pod with a network of its own joins one at least"),
        ("base_networks: [lo, mine]", "base_networks[1]: container_networks has no entry 'mine'"),
        ("default_networks: [none]", "default_networks[0]: expected a network's name, other than host and none"),
        ("[1]", "expected an object, found a list"),
        ("on: {1: 2}", "True: a key must be text, found True: put it in quotes"),
        ("renderer: 2020-01-01", "renderer: expected what JSON can say, found a date: put it in quotes"),
    ],
)
def test_a_wrong_value(tmp_path, text, message):
    assert failing(tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{plugin: cni}", "container_networks[0].name: it is missing"),
        (
            "{name: x}",
            "container_networks[0]: expected either `aci` (an image) or `plugin` (a Python plugin), found neither",
        ),
        (
            "{name: x, aci: a, plugin: b}",
            "container_networks[0]: expected either `aci` (an image) or `plugin` (a Python plugin), found both",
        ),
        (
            "{name: host, plugin: b}",
            'container_networks[0].name: expected a name other than host and none, found "host"',
        ),
        (
            "{name: a b, plugin: b}",
            "container_networks[0].name: expected a name without blanks, / , : = and a leading . or -",
        ),
        ("{name: x, plugin: b, default: 1}", "container_networks[0].default: expected true or false"),
        (
            "{name: x, plugin: b}, {name: x, plugin: c}",
            'container_networks[1].name: expected each name once, found "x" again',
        ),
        ("7", "container_networks[0]: expected an object, found 7"),
    ],
)
def test_a_wrong_network(tmp_path, entry, message):
    assert failing(tmp_path, f"container_networks: [{entry}]").startswith(message)


#: Two hundred bytes that stand for nine to the ninth values.
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("kurma.yml", "renderer: a\nrenderer: b\n", "line 2: the key 'renderer' is given twice"),
        ("kurma.yml", "plugins:\n  networks: {a: {}, a: {}}\n", "line 2: the key 'a' is given twice"),
        (
            "kurma.json",
            '{"renderer": "a", "renderer": "b"}',
            "renderer: expected each key once, found key",
        ),
        ("kurma.yml", "a: [1", "line 2, column 1: not YAML:"),
        ("kurma.yml", "a: !!python/object:os.system x", "line 1, column 4: not YAML:"),
        ("kurma.yml", "a: 2020-13-45", "not YAML:"),
        ("kurma.yml", "a: 1\nb: " + "1" * 5000, "not YAML: line 2: a number of too many digits"),
        ("kurma.json", '{"a":\n' + "1" * 5000 + "}", "not JSON: a number of too many digits at line 2, column 1"),
        ("kurma.json", "{", "not JSON:"),
        ("kurma.json", "[" * 100_000, "expected at most 64 levels of nesting, found more"),
        ("kurma.yml", "a: " + "[" * 100_000, "line 1: not YAML: nested too deep"),
        ("kurma.yml", "- " * 50_000, "line 1: not YAML: nested too deep"),
        ("kurma.yml", "".join(f"{' ' * deep}a:\n" for deep in range(3000)), "line 101: not YAML: nested too deep"),
        ("kurma.yml", "plugins: &a {networks: *a}", "plugins.networks.networks."),
        ("kurma.yml", "trusted_host_keys: &a [*a]", "trusted_host_keys[0][0]["),
        ("kurma.yml", LAUGHS, "i["),
    ],
)
def test_a_broken_file(tmp_path, name, text, message):
    assert failing(tmp_path, text, name).startswith(message)


def test_merge_keys_may_be_overridden(tmp_path):
    file = tmp_path / "kurma.yml"
    file.write_text("log: &base {size: 1Mi, count: 2}\nplugins: {networks: {x: {config: {<<: *base, size: 3}}}}\n")
    assert load(str(file)).plugin("networks", "x").config == {"size": 3, "count": 2}


def test_two_main_files_are_one_too_many(tmp_path):
    (tmp_path / "kurma.yml").write_text("")
    (tmp_path / "kurma.json").write_text("")
    with pytest.raises(ConfigError, match=r"holds both kurma\.yml and kurma\.json"):
        load(str(tmp_path))


def test_a_file_that_anyone_may_write(tmp_path):
    file = tmp_path / "kurma.yml"
    file.write_text("")
    os.chmod(file, 0o666)
    with pytest.raises(ConfigError, match="anyone may write to it") as caught:
        load(str(file))
    assert caught.value.hint == f"chmod o-w {file}"


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "kurma.yml").mkdir()
    with pytest.raises(ConfigError, match=r"kurma\.yml: cannot be read: it is a directory$"):
        load(str(tmp_path))


def test_a_file_that_has_no_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for file, why in ((str(tmp_path / "pipe"), "it is not a regular file"), ("/dev/zero", "it is larger than")):
        with pytest.raises(ConfigError, match=rf"^{file}: cannot be read: {why}"):
            load(file)
    assert load("/dev/null").config_files == ("/dev/null",)


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "kurma.yml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="not UTF-8: byte 3"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (3, 3.0),
        (0.5, 0.5),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("1h30m", 5400.0),
        ("2", 2.0),
        ("1.5m", 90.0),
        ("1d", 86400),
    ],
)
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "1x", "1m30", "1 s", "--1", "1..2s", "9" * 400, None, [], float("inf"), float("nan")]
)
def test_no_durations(text):
    with pytest.raises(ValueError):
        duration(text)
