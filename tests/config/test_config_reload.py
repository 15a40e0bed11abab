"""What of a configuration takes effect while a daemon runs."""

import pytest

from kurma_core.config import load
from kurma_core.daemon.reload import changed_keys, config_changes, with_fixed
from kurma_core.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "kurma.yml").write_text(text)
        return load(str(tmp_path))

    return read


def test_what_is_new(read):
    old = read("stop_timeout: 3")
    assert changed_keys(old, read("stop_timeout: 3s")) == ([], [])
    new = read("stop_timeout: 4\nlog: {count: 2}\nstate_dir: /elsewhere")
    taken, fixed = changed_keys(old, new)
    assert (taken, fixed) == (["stop_timeout", "log"], ["state_dir", "run_dir"])
    kept = with_fixed(old, new)
    assert (kept.state_dir, kept.run_dir, kept.stop_timeout) == ("/var/lib/kurma", "/run/kurma", 4)
    assert changed_keys(old, kept) == (["stop_timeout", "log"], [])
    assert changed_keys(kept, new) == ([], ["state_dir", "run_dir"])


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "renderer: copy", ["renderer: overlay → copy"]),
        ("stop_timeout: 3", "stop_timeout: 4s\nlog: {count: 2}", ["stop_timeout: 3.0 → 4.0", "log.count: 5 → 2"]),
        ("", "required_isolators: {kurma.io/pids-limit: false}", None),
        # Addresses may have passwords in them, and options of plugins are secrets of theirs.
        ("", "prefetch_images: ['https://me:hush@example.com/a.aci']", ["prefetch_images: changed"]),
        ("", "stagers: {mine: {image: 'https://me:hush@a/b'}}", ["stagers.mine: new"]),
        (
            "stagers: {mine: {image: 'https://me:hush@a/b'}}",
            "stagers: {mine: {image: 'https://me:hush@a/c', without_isolators: true}}",
            ["stagers.mine.image: changed", "stagers.mine.without_isolators: false → true"],
        ),
        (
            "plugins: {networks: {one: {config: {key: hush}}, two: {}}}",
            "plugins: {enable: listed, networks: {one: {required: true, config: {key: hush2}}}}",
            [
                "plugins.enable: all → listed",
                "plugins.networks.one.required: false → true",
                "plugins.networks.one.config: changed",
                "plugins.networks.two: removed",
            ],
        ),
        ("container_networks: [{name: a, plugin: x, key: hush}]", "", ["container_networks: changed"]),
        ("renderer: copy", "renderer: copy", []),
    ],
)
def test_changes_in_words(read, old, new, lines):
    changes = list(config_changes(read(old).values, read(new).values))
    if lines is not None:
        assert [str(change) for change in changes] == lines
    assert "hush" not in "".join(str(change.to_json()) for change in changes)


def test_initial_pods(read):
    config = read("initial_pods: ['docker://example.com/a/web:3', {name: db, apps: [{name: db, image: /x.aci}]}]")
    locator, template = config.initial_pods
    assert (locator.name, locator.key) == (None, "docker://example.com/a/web:3")
    assert locator.template == {"apps": [{"name": "web", "image": "docker://example.com/a/web:3"}]}
    assert (template.name, template.key) == ("db", "db")
    assert template.template == {"apps": [{"name": "db", "image": "/x.aci"}]}
    assert read("").initial_pods == ()


def test_files_of_variables_of_initial_pods(read):
    text = "initial_pods: [{name: db, apps: [{name: db, image: /x.aci, environmentFiles: %s}]}]"
    (entry,) = read(text % "[/etc/db.env]").initial_pods
    assert entry.template["apps"][0]["environmentFiles"] == ["/etc/db.env"]
    for wrong in ("[db.env]", "/etc/db.env", "[1]"):
        with pytest.raises(ConfigError, match="environmentFiles: expected a list of absolute paths"):
            read(text % wrong)
