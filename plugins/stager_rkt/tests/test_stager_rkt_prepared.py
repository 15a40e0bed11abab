"""What stands in a pod's directory once it is prepared (Z2, Z4); what is refused; pods that were never run."""

import json
import os

import pytest
from kurma_stager_rkt import plugin
from kurma_stager_rkt.pod_directories import Places
from kurma_testing.stagers import ID, pod_setup

from kurma_core.appc.image import ImageManifest
from kurma_core.appc.pod import PodManifest
from kurma_core.errors import HostError, StagerError
from kurma_core.hookspecs.driver import DriverContext, HostTree
from kurma_core.models.image import RenderedLayer
from kurma_core.models.isolator import IsolatorPlan, TrafficLimit
from kurma_core.models.network import Attachment, NetworkRequest, PortMapping
from kurma_core.models.pod import MountSetup
from kurma_core.value import replace

STAGE1 = "sha512-" + "1" * 128
OTHER = "sha512-" + "2" * 128
PREFIX = "coreos.com/rkt/stage1/"


class Preparing:
    """:attr:`notes` is what was told; :attr:`moves` where pods went, while they are discarded."""

    def __init__(self, directory, monkeypatch, *, version="2", **config):
        annotations = [{"name": PREFIX + name, "value": f"/{name}"} for name in ("run", "gc")]
        annotations.append({"name": PREFIX + "interface-version", "value": version})
        manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/s"}
        tree = HostTree(STAGE1, str(directory), ImageManifest.parse({**manifest, "annotations": annotations}))
        self.notes = []
        self.moves = []
        self.context = DriverContext(
            config,
            str(directory / "state"),
            note=self.notes.append,
            host_image=lambda locator: tree,
            start_program=lambda program: pytest.fail("an entrypoint is run"),
        )
        self.driver = plugin.kurma_stager().create(self.context).of_image("mine", "/s.aci")
        self.pod = replace(pod_setup(directory / "146d7cef-fbf6-41da-a2f8-eba218597f9c", "/app", ("/it",)))
        real = os.rename

        def rename(old, new):
            self.moves.append(new.split("/")[-2])
            real(old, new)

        monkeypatch.setattr(os, "rename", rename)

    def __call__(self, **changes):
        """Prepares the pod, so changed; :returns: its manifest."""
        self.pod = replace(self.pod, **changes)
        self.driver.prepare(self.pod)
        return self.json("pod")

    def text(self, name):
        with open(f"{Places.of(self.context).path('prepared', self.pod.uuid)}/{name}") as file:
            return file.read()

    def json(self, name):
        return json.loads(self.text(name))


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    return Preparing(tmp_path, monkeypatch)


def network(name, config=None, *, ports=(), inside="eth0", **request):
    wanted = NetworkRequest(name, **request)
    return Attachment(name, "some", inside, config or {}, wanted, ports=ports, base=inside == "lo")


def with_ports(pod, *ports):
    """Its image names these."""
    image = {**pod.images[ID], "app": {**pod.images[ID]["app"], "ports": list(ports)}}
    manifest = pod.manifest.to_json()
    del manifest["apps"][0]["app"]
    return replace(pod, images={ID: image}, manifest=PodManifest.parse(manifest))


def test_trees(prepare):
    """By rkt's names, of the images that they are of."""
    prepare()
    assert prepare.text("stage1TreeStoreID") == f"deps-{STAGE1}"
    assert prepare.text("appsinfo/app/treeStoreID") == f"deps-{ID}"
    assert prepare.json("stage1/manifest")["name"] == "example.com/s"


def test_the_image_of_an_app(prepare):
    """Its own, whatever lies at the top of its layers: its dependencies may have nothing of an app."""
    (app,) = prepare.pod.apps
    layers = (RenderedLayer(OTHER, "/dep"), *app.layers)
    images = {**prepare.pod.images, OTHER: {**prepare.pod.images[ID], "name": "example.com/dependency"}}
    prepare(apps=(replace(app, layers=layers),), images=images)
    assert prepare.json("appsinfo/app/manifest")["name"] == "example.com/app"
    assert prepare.text("appsinfo/app/treeStoreID") == f"deps-{OTHER}"


def test_mounts(prepare):
    (app,) = prepare.pod.apps
    mounts = (MountSetup("data", "/data", read_only=True), MountSetup("data", "/again", read_only=False))
    (found,) = prepare(apps=(replace(app, mounts=mounts),))["apps"]
    assert found["mounts"] == [{"volume": "data", "path": "/data"}, {"volume": "data", "path": "/again"}]


def test_published_ports(prepare):
    """By the name of the app's own port, of that number and protocol; else by one of ours, with all that it is."""
    prepare.pod = with_ports(
        prepare.pod,
        {"name": "dns", "protocol": "udp", "port": 53},
        {"name": "web", "protocol": "tcp", "port": 80},
    )
    ports = (PortMapping(8080, 80, host_ip="192.0.2.1"), PortMapping(5353, 53))
    found = prepare(attachments=(network("front", ports=ports),))["ports"]
    web, dns = found
    assert web == {"name": "web", "hostPort": 8080, "hostIP": "192.0.2.1"}
    assert dns.pop("podPort").items() >= {"name": "port-5353-tcp", "protocol": "tcp", "port": 53}.items()
    assert dns == {"name": "port-5353-tcp", "hostPort": 5353}


def test_published_ports_have_a_name_each(prepare):
    """P4: one port of an app published several times; a range of an app's, each published by itself."""
    prepare.pod = with_ports(
        prepare.pod,
        {"name": "web", "protocol": "tcp", "port": 80},
        {"name": "many", "protocol": "tcp", "port": 90, "count": 2},
    )
    mappings = (PortMapping(8080, 80), PortMapping(8081, 80, host_ip="192.0.2.1"))
    mappings += (PortMapping(8081, 80, host_ip="192.0.2.2"), PortMapping(8090, 90), PortMapping(8091, 91))
    value = prepare(attachments=(network("front", ports=mappings),))
    ports = PodManifest.parse(value).ports
    inside = [80 if port.pod_port is None else port.pod_port.port for port in ports]
    assert inside == [each.pod_port for each in mappings]
    assert [port.name for port in ports if port.pod_port is None] == ["web"]


def test_networks_of_cni(prepare):
    """Each by the name that its configuration has, in a file that says which kind it is; no others."""
    chain = {"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}
    plain, own = {"type": "ptp"}, {"bridge": "kurma0"}
    prepare(
        attachments=(
            network("lo", {"type": "loopback"}, inside="lo"),
            network("chain", chain),
            network("plain", plain),
            network("default", own),
        )
    )
    assert prepare.json("local-config/net.d/other.conflist") == chain
    assert prepare.json("local-config/net.d/plain.conf") == {"type": "ptp", "name": "plain"}
    place = Places.of(prepare.context).path("prepared", prepare.pod.uuid)
    assert sorted(os.listdir(f"{place}/local-config/net.d")) == ["other.conflist", "plain.conf"]


@pytest.mark.parametrize(
    "request_", [{"ips": ("192.0.2.7", "192.0.2.8")}, {"mac": "02:00:00:00:00:01"}, {"interface": "x0"}]
)
def test_what_stage1_is_not_told_of_a_network(prepare, request_):
    plain = {"type": "ptp"}
    prepare(attachments=(network("front", plain), network("back", plain, **request_)))
    why = "its stage1 is told of one IP address at most, and of no MAC address, interface or arguments"
    assert prepare.notes == [f"network back: {why}"]


@pytest.mark.parametrize("where", ["pod", "app"])
def test_limits_of_traffic(prepare, where):
    """Nobody would hold the pod to them."""
    plan = IsolatorPlan(traffic=(TrafficLimit("out", 1000),))
    changes = {"pod_plan": plan} if where == "pod" else {"plans": {"app": plan}}
    with pytest.raises(StagerError, match="cannot be held to limits of traffic"):
        prepare(**changes)
    assert not os.path.exists(prepare.context.state_dir)


def test_options_of_the_plugin(tmp_path, monkeypatch):
    """Are those of every stager of it, unless its own section says otherwise."""
    prepare = Preparing(tmp_path, monkeypatch, ipc="private")
    with pytest.raises(StagerError, match="cannot be told to give its pod an IPC namespace of its own"):
        prepare()
    prepare(config={"ipc": "auto"})


def test_again(prepare):
    """What the last time has left is gone, with what it has printed."""
    prepare()
    with open(f"{prepare.pod.directory}/stager/output", "w") as file:
        file.write("earlier")
    with open(f"{Places.of(prepare.context).path('prepared', prepare.pod.uuid)}/was", "w"):
        pass
    prepare()
    with pytest.raises(FileNotFoundError):
        prepare.text("was")
    assert os.path.getsize(f"{prepare.pod.directory}/stager/output") == 0


def test_one_that_is_never_run(prepare):
    """It goes by way of ``garbage``, and no entrypoint has anything to free (Z2, Z6)."""
    prepare()
    prepare.moves.clear()
    assert prepare.driver.discard(prepare.pod.directory) == ()
    assert prepare.moves == ["garbage"]
    assert Places.of(prepare.context).uuids() == set()


def test_one_that_is_locked_by_another(prepare):
    """Nobody starts it, or takes it away, under who has it in hand."""
    prepare()
    place = Places.of(prepare.context).take(prepare.pod.uuid)
    try:
        with pytest.raises(HostError, match="cannot start the pod"):
            prepare.driver.start(prepare.pod, None)
        with pytest.raises(BlockingIOError):
            prepare.driver.discard(prepare.pod.directory)
    finally:
        place.close()


def test_one_that_is_not_prepared(prepare):
    """It is not started: who begins to prepare it may have died half-way."""
    place = Places.of(prepare.context).make(prepare.pod.uuid)
    place.close()
    with pytest.raises(StagerError, match="is not prepared in"):
        prepare.driver.start(prepare.pod, None)
