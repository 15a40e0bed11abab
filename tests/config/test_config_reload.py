"""What of a configuration takes effect while a daemon runs."""

import pytest

from kurma_core.config import load
from kurma_core.daemon.kurmad import changed_keys, with_fixed


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


def test_initial_pods(read):
    config = read("initial_pods: ['docker://example.com/a/web:3', {name: db, apps: [{name: db, image: /x.aci}]}]")
    locator, template = config.initial_pods
    assert (locator.name, locator.key) == (None, "docker://example.com/a/web:3")
    assert locator.template == {"apps": [{"name": "web", "image": "docker://example.com/a/web:3"}]}
    assert (template.name, template.key) == ("db", "db")
    assert template.template == {"apps": [{"name": "db", "image": "/x.aci"}]}
    assert read("").initial_pods == ()
