"""``kurma.io/cdi``: what descriptions of the Container Device Interface become, and which are refused (C8)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kurma_isolators_linux.driver import LinuxIsolators

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.models.isolator import Device, HostMount
from kurma_core.value import replace

NAME = "kurma.io/cdi"
NODE = {
    "path": "/dev/gpu0",
    "type": "c",
    "major": 195,
    "minor": 0,
    "permissions": "rw",
    "fileMode": 0o600,
    "uid": 7,
}
YAML = """\
cdiVersion: 0.6.0
kind: vendor.com/net
devices:
  - name: nic0
    containerEdits:
      env: [NIC=0, MODE=a=b]
"""


class Place:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.host = replace(IsolatorHost({}, 1), root=str(root))

    def write(self, text: Any, name: str = "etc/cdi/gpu.json") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))

    def plan(self, *devices: str) -> Any:
        found = LinuxIsolators().compile(NAME, list(devices), "app", self.host)
        assert found.outcome == "enforced"
        return found.plan

    def refused(self, says: str, *devices: str) -> None:
        with pytest.raises(IsolatorError, match=says):
            self.plan(*(devices or ("vendor.com/gpu=0",)))


@pytest.fixture
def place(tmp_path: Any) -> Place:
    return Place(tmp_path)


def description(edits: Any = None, whole: Any = None, name: str = "0") -> Any:
    found = {
        "cdiVersion": "0.6.0",
        "kind": "vendor.com/gpu",
        "devices": [{"name": name, "containerEdits": edits or {}}],
    }
    return found if whole is None else {**found, "containerEdits": whole}


def test_nodes_mounts_and_variables(place: Place) -> None:
    mounts = [
        {"hostPath": "/usr/lib/libgpu.so.1", "containerPath": "/usr/lib/libgpu.so.1", "options": ["ro", "bind"]},
        {"hostPath": "/run/gpu", "containerPath": "/run/gpu"},
    ]
    place.write(description({"deviceNodes": [NODE], "mounts": mounts}, {"env": ["GPU=all"]}))
    place.write(YAML, "var/run/cdi/net.yaml")
    place.write("no description", "etc/cdi/readme.txt")
    plan = place.plan("vendor.com/gpu=0", "vendor.com/net=nic0", "vendor.com/gpu=0")
    assert plan.devices == (Device("/dev/gpu0", "c", 195, 0, "rw", 0o600, 7, 0),)
    library = "/usr/lib/libgpu.so.1"
    assert plan.mounts == (HostMount(library, library, True), HostMount("/run/gpu", "/run/gpu", False))
    assert plan.environment == {"GPU": "all", "NIC": "0", "MODE": "a=b"}
    assert plan.version == 3


def test_a_later_directory_has_precedence(place: Place) -> None:
    place.write(description({"env": ["A=1"]}))
    place.write(description({"env": ["A=2"]}), "var/run/cdi/gpu.json")
    assert place.plan("vendor.com/gpu=0").environment == {"A": "2"}
    place.write(description({"env": ["A=3"]}), "var/run/cdi/other.json")
    place.refused("vendor.com/gpu=0 is in /var/run/cdi/gpu.json, too")


def test_numbers_of_a_node_are_the_hosts(place: Place) -> None:
    (place.root / "dev").mkdir()
    (place.root / "dev/seed").symlink_to("/dev/urandom")
    place.write(description({"deviceNodes": [{"path": "/dev/own", "hostPath": "/dev/seed"}]}))
    (found,) = place.plan("vendor.com/gpu=0").devices
    assert (found.path, found.kind, found.major, found.minor, found.access) == ("/dev/own", "c", 1, 9, "rwm")


def test_what_is_refused(place: Place) -> None:
    place.refused("there is no device vendor.com/gpu=0")
    place.write(description({"hooks": [{"hookName": "createContainer", "path": "/bin/true"}]}))
    place.refused("it needs hooks, which Kurma does not support")
    place.refused("there is no device vendor.com/gpu=1", "vendor.com/gpu=1")
    for edits, says in (
        ({"env": ["X"]}, '"X" is not an environment variable'),
        ({"env": "X=1"}, "env is not a list"),
        ({"deviceNodes": [{"path": "/etc/x"}]}, "is not below /dev"),
        ({"deviceNodes": [{"path": "/dev/none"}]}, "/dev/none: no such file"),
        ({"deviceNodes": [{**NODE, "type": "p"}]}, "the device node /dev/gpu0"),
        ({"mounts": [{"hostPath": "/a", "containerPath": "b"}]}, "containerPath"),
        ({"mounts": [{"containerPath": "/b"}]}, "the mount at /b has no hostPath"),
    ):
        place.write(description(edits))
        place.refused(says)
    for text, says in (
        ("{", "not JSON"),
        ({}, "it has no kind"),
        ({"kind": "a.b/c"}, "it has no list of devices"),
    ):
        place.write(text)
        place.refused(f"cannot use the description /etc/cdi/gpu.json: {says}")
    place.write(description(name="a b"))
    place.refused("is not the name of a device")
    place.write("kind: [", "etc/cdi/gpu.json")
    place.write("kind: [", "etc/cdi/a.yaml")
    place.refused(r"/etc/cdi/a\.yaml: while parsing")


@pytest.mark.parametrize(
    "value", [None, "vendor.com/gpu=0", ["gpu"], ["vendor.com/gpu"], ["a/b="], ["a/b=c d"], [7]]
)
def test_values_that_are_no_names(place: Place, value: Any) -> None:
    with pytest.raises(IsolatorError, match="expected a list of names of devices"):
        LinuxIsolators().compile(NAME, value, "app", place.host)


def test_each_device_is_a_power(place: Place) -> None:
    found = LinuxIsolators().powers(NAME, ["a.b/c=d", "a.b/c=e"], "app", place.host)
    assert [one.name for one in found] == [f"{NAME}=a.b/c=d", f"{NAME}=a.b/c=e"]
