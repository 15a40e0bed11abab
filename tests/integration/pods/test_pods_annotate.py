"""Annotations of pods and apps are changed in any state, in one step; those that Kurma acts on are not."""

import pytest

from kurma_core.errors import AppNotFoundError, UsageError

pytestmark = pytest.mark.root


def told(house, reference, app=None):
    manifest = house.client.pod(reference).manifest
    if app is not None:
        manifest = next(one for one in manifest["apps"] if one["name"] == app)
    return {one["name"]: one["value"] for one in manifest.get("annotations", ())}


def test_set_and_removed_in_any_state(house):
    record = house.client.prepare(house.request("sleep 1000", name="noted"))
    annotate = house.client.pod_annotate
    annotate("noted", set={"example.com/a": "1", "kurma.io/cri/fact": "{}", "No identifier": "x"})
    assert told(house, "noted") == {**told(house, "noted"), "example.com/a": "1", "kurma.io/cri/fact": "{}"}
    assert house.client.pod("noted").manifest["userAnnotations"] == {"No identifier": "x"}
    with house.started(record) as pod:
        before = house.state_of(pod)
        changed = annotate("noted", set={"example.com/a": "2"}, remove=["kurma.io/cri/fact", "missing"])
        assert changed.state == "running"
        assert told(house, "noted")["example.com/a"] == "2"
        assert "kurma.io/cri/fact" not in told(house, "noted")
        annotate("noted", set={"example.com/of": "app"}, app="main")
        assert told(house, "noted", "main") == {"example.com/of": "app"}
        assert house.state_of(pod) == before
    annotate("noted", remove=["No identifier", "example.com/a"])
    assert house.client.pod("noted").manifest.get("userAnnotations", {}) == {}
    assert "example.com/a" not in told(house, "noted")
    done = house.kurma("annotate", "noted", "--app", "main", "example.com/of-", "example.com/by=hand=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert told(house, "noted", "main") == {"example.com/by": "hand=1"}


def test_refused(house):
    house.client.prepare(house.request("true", name="kept"))
    before = house.client.pod("kept").manifest
    for name in ("kurma.io/restart", "kurma.io/pod/restart", "appc.io/executor/supports-systemd-notify", ""):
        with pytest.raises(UsageError):
            house.client.pod_annotate("kept", set={name: "x", "example.com/a": "1"})
        with pytest.raises(UsageError):
            house.client.pod_annotate("kept", remove=[name])
    with pytest.raises(AppNotFoundError):
        house.client.pod_annotate("kept", set={"a": "b"}, app="other")
    with pytest.raises(UsageError, match="name of an app's annotation"):
        house.client.pod_annotate("kept", set={"A": "b"}, app="main")
    for name in ("a", "kurma.io/cri/fact"):
        with pytest.raises(UsageError, match="bytes"):
            house.client.pod_annotate("kept", set={name: "b" * (1 << 20)})
    assert "expected NAME=VALUE or NAME-" in house.kurma("annotate", "kept", "a").stderr
    assert house.client.pod("kept").manifest == before


def test_large_annotations_of_a_plugin_leave_room(house):
    """A pod may be made with any of them."""
    large = {"name": "kurma.io/cri/config", "value": "x" * (1 << 20)}
    house.client.prepare(house.request("true", name="large", annotations=[large]))
    house.client.pod_annotate("large", set={"kurma.io/cri/more": "y" * 200_000, "example.com/a": "1"})
    found = told(house, "large")
    assert (len(found["kurma.io/cri/config"]), found["example.com/a"]) == (1 << 20, "1")
