"""What a pod is run with, and what the user is told of that (Z4, X6)."""

import os

import pytest
from kurma_stager_rkt import pod_files
from kurma_stager_rkt.enter_attach import attach_arguments
from kurma_stager_rkt.removal import why
from kurma_stager_rkt.run_arguments import check, decide, lifted_of_pod
from kurma_testing.stagers import pod_setup

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import StagerError
from kurma_core.hookspecs.driver import HostTree
from kurma_core.hookspecs.pod_setup import VolumeSetup
from kurma_core.models.isolator import Device, IsolatorPlan
from kurma_core.models.network import Attachment, NetworkRequest
from kurma_core.models.pod import MountSetup
from kurma_core.models.streams import Stdio
from kurma_core.value import replace

ALL = ("capabilities", "paths", "seccomp")


@pytest.fixture
def pod(tmp_path):
    return pod_setup(tmp_path / "pod", tmp_path, ("/bin/true",))


def with_two(pod, first, second, **more):
    one = pod.apps[0]
    apps = (replace(one, name="one"), replace(one, name="two"))
    return replace(
        pod,
        apps=apps,
        plans={"one": IsolatorPlan(privileged=first), "two": IsolatorPlan(privileged=second)},
        **more,
    )


def test_walls_that_are_taken_down(pod):
    """For all apps or for none; into a mutable pod apps come with a word of their own."""
    assert lifted_of_pod("mine", pod, ("paths",)) == ("paths",)
    assert lifted_of_pod("mine", with_two(pod, True, True), ()) == ALL
    with pytest.raises(StagerError, match="one is privileged, and two is not"):
        lifted_of_pod("mine", with_two(pod, True, False), ())
    assert lifted_of_pod("mine", with_two(pod, True, False, keep=True), ("paths",)) == ("paths",)


def told(pod):
    notes = []
    check("mine", pod, notes.append)
    return notes


def attachment(network, config, interface="eth0", **request):
    wanted = NetworkRequest(network, **request)
    return Attachment(network, "driver", interface, config, wanted, base=interface == "lo")


def test_what_stage1_is_not_told_of(pod):
    """A line each; nothing of what it knows by itself."""
    assert told(pod) == []
    known = (
        attachment("loopback", {"driver": "loopback"}, "lo"),
        attachment("default", {"driver": "bridge"}),
        attachment("back", {"type": "bridge"}, ips=("10.1.0.9/24",)),
    )
    assert pod_files.network_names(replace(pod, attachments=known)) == ("default", "back:IP=10.1.0.9")
    assert told(replace(pod, attachments=known)) == []
    # Addresses are kept by CNI's own name of a network, which pods request by another.
    chosen = (attachment("cni", {"name": "node", "plugins": [{"type": "bridge"}]}),)
    assert pod_files.network_names(replace(pod, attachments=chosen)) == ("node",)
    assert pod_files.networks(replace(pod, attachments=chosen)) == {"node": chosen[0].config}
    assert told(replace(pod, attachments=chosen)) == []
    mac = "02:00:00:00:00:01"
    networks = (
        attachment("own", {"driver": "bridge"}),
        attachment("back", {"type": "bridge"}, "eth1", mac=mac, optional=True),
    )
    volumes = (
        VolumeSetup("fast", "", False, tmpfs={"mode": "0755"}),
        VolumeSetup("data", "/somewhere", False),
    )
    mounts = (MountSetup("data", "/data", False, seed=True), MountSetup("fast", "/fast", False))
    asking = replace(
        pod,
        attachments=networks,
        volumes=volumes,
        apps=(replace(pod.apps[0], mounts=mounts),),
        plans={"app": IsolatorPlan(devices=(Device("/dev/kvm", "c", 10, 232),))},
        pod_plan=IsolatorPlan(namespaces={"ipc": "host", "uts": "host"}),
    )
    of_network = "its stage1 is told of one IP address at most, and of no MAC address, interface or arguments"
    assert told(asking) == [
        "network own: it is Kurma's own, of which its stage1 gets the name alone",
        f"network back: {of_network}",
        "network back: its stage1 is not told that the pod may go without it",
        "volume fast: its stage1 does not keep it in memory",
        "volume data: its stage1 makes an empty one, without what the image has there",
        "its stage1 is not told that the pod shares the host's uts namespace",
        "app app: its stage1 is not told of its devices",
    ]


def test_a_network_that_keeps_its_pods_from_each_other(pod, tmp_path):
    """Stage1's own one of that name does not; what an admin has for it elsewhere, and CNI's, are what they are."""
    run = [{"name": "coreos.com/rkt/stage1/run", "value": "/run"}]
    image = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/s", "annotations": run}
    tree = HostTree("sha512-0", str(tmp_path), ImageManifest.parse(image))

    def decided(config, **said):
        on = replace(pod, attachments=(attachment("default", config),))
        return decide("mine", on, tree, said, "/place", None).wishes.networks

    own = {"bridge": "mine0", "isolated": True}
    with pytest.raises(StagerError, match="network default keeps its pods from each other"):
        decided(own)
    assert decided(own, localConfig="/etc/rkt") == ("default",)
    assert decided({**own, "isolated": False}) == decided({"type": "bridge", "isolated": True}) == ("default",)


def test_why():
    """With or without a name."""
    found = [why(OSError(22, "Invalid argument", name)) for name in ("/there", None)]
    assert [*found, why(OSError("odd"))] == ["/there: Invalid argument", "Invalid argument", "odd"]


def test_where_networks_are_looked_for(pod):
    """In the directory that the admin names, Kurma's own configurations are not."""
    one = replace(pod, attachments=(attachment("back", {"type": "bridge"}), attachment("default", {}, "eth1")))
    for local, expected in (
        ("local-config", []),
        ("/etc/rkt", ["network back: its stage1 looks for it in /etc/rkt, as it is told to"]),
    ):
        notes = []
        check("mine", one, notes.append, local)
        assert notes == expected


@pytest.mark.parametrize(
    ("app", "in_front", "mode"),
    [
        ({}, True, ""),
        ({"stdin_open": True}, True, "stream"),
        ({"terminal": True}, True, "tty"),
        ({"terminal": True, "stdin_open": True}, True, "interactive"),
        ({"terminal": True, "stdin_open": True}, False, "tty"),
        ({"interactive": True, "stdin_open": True}, True, "interactive"),
        ({"interactive": True, "stdin_open": True}, False, "stream"),
    ],
)
def test_streams_of_an_app(pod, app, in_front, mode):
    """What somebody types goes to it, or it may be attached to, or neither; and its author has the last word."""
    setup = replace(pod.apps[0], **app)
    pod = replace(pod, apps=(setup,))
    assert pod_files.mode(pod, setup, in_front=in_front) == mode
    (found,) = pod_files.pod_manifest(pod, attachable=True, in_front=in_front)["apps"]
    assert pod_files.modes_of(found) == (dict.fromkeys(pod_files.STREAMS, mode) if mode else {})
    (found,) = pod_files.pod_manifest(pod, attachable=False, in_front=in_front)["apps"]
    assert pod_files.modes_of(found) == {}


def test_a_word_of_the_pods_author(pod):
    """On a stream of an app goes before what Kurma makes of it."""
    name = pod_files.STREAMS[1]
    value = pod.manifest.to_json()
    value["apps"][0]["annotations"] = [{"name": name, "value": "log"}]
    pod = replace(pod, manifest=type(pod.manifest).parse(value), apps=(replace(pod.apps[0], stdin_open=True),))
    (found,) = pod_files.pod_manifest(pod, attachable=True)["apps"]
    assert pod_files.modes_of(found) == {**dict.fromkeys(pod_files.STREAMS, "stream"), name: "log"}


def test_standard_input_in_front(pod, tmp_path):
    """Is handed on where it is somebody's; in the background, under a stage1 that can attach, nobody's."""
    pod = replace(pod, apps=(replace(pod.apps[0], interactive=True, stdin_open=True),))

    def interactive(version, path):
        names = ("run", "enter", "attach", "interface-version")
        values = ("/run", "/enter", "/attach", str(version))
        annotations = [
            {"name": f"coreos.com/rkt/stage1/{name}", "value": value}
            for name, value in zip(names, values, strict=True)
        ]
        image = {
            "acKind": "ImageManifest",
            "acVersion": "0.8.11",
            "name": "example.com/s",
            "annotations": annotations,
        }
        tree = HostTree("sha512-0", str(tmp_path), ImageManifest.parse(image))
        with open(path) as stdin:
            stdio = Stdio(stdin.fileno(), 1, 2)
            return decide("mine", pod, tree, {}, "/place", stdio).wishes.interactive

    file = tmp_path / "input"
    file.touch()
    assert [interactive(5, file), interactive(5, os.devnull), interactive(4, os.devnull)] == [True, False, True]


def test_what_attach_is_told():
    assert attach_arguments("a", {}, debug=True, stdin=True) == ("--action=auto-attach", "--app=a", "--debug")
    for mode, terminal in (("tty", "true"), ("stream", "false")):
        found = attach_arguments("a", dict.fromkeys(pod_files.STREAMS, mode), debug=False, stdin=False)
        streams = "false" if terminal == "true" else "true"
        assert found == (
            "--action=custom-attach",
            "--app=a",
            "--tty-in=false",
            f"--tty-out={terminal}",
            "--stdin=false",
            f"--stdout={streams}",
            f"--stderr={streams}",
        )
