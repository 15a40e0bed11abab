"""Which networks a pod joins, in what order, and what is undone when one fails (W1, W3, W4, W8)."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kurma_testing import bound

from kurma_core import config as configuration
from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, KurmaError, NetworkError, PluginError, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.network import NetworkHooks
from kurma_core.models.network import AddressResult, Attachment, NetworkRequest, NetworkResult, PortMapping
from kurma_core.networking.manager import Networking
from kurma_core.networking.network_records import pin_path
from tests.kit.waiting import until

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"
POD = {"pod": UUID, "pod_name": "p", "namespace": pin_path("net", UUID)}
DOCUMENT = {
    "container_networks": [
        {"name": "lo", "aci": "apcera.com/kurma/lo-netplugin"},
        {
            "name": "mynet",
            "aci": "apcera.com/kurma/cni-netplugin",
            "containerInterface": "eth0",
            "type": "bridge",
            "bridge": "mynet0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
        },
    ]
}
ALIASES = {"apcera.com/kurma/lo-netplugin": "lo", "apcera.com/kurma/cni-netplugin": "cni"}


class Recorder(NetworkHooks):
    """A network kind that writes down what it is asked, and fails where it is told to."""

    def __init__(self):
        self.calls = []
        self.fail = {}
        self.results = {}
        self.interfaces = {}
        self.found = {}
        self.publishing = None
        self.chosen = {}
        self.reason = ""

    @hookimpl
    def interface(self, config):
        name = config["name"]
        return "" if "aci" in config else "lo" if name == "lo" else self.interfaces.get(name)

    @hookimpl
    def complete(self, config, choose):
        """The network ``default`` leaves a number open."""
        name = config["name"]
        if name != "default" or "number" in config:
            return config
        if choose:
            self.chosen.setdefault(name, 7)
        return {**config, "number": self.chosen[name]} if name in self.chosen else None

    @hookimpl
    def setup(self, config):
        self._call("setup", config["name"])

    @hookimpl
    def add(self, context):
        self._call("add", context.attachment.network)
        self.context = context
        if context.attachment.network == "lo":
            return None
        default = NetworkResult((AddressResult("10.1.0.2/16", "10.1.0.1"),))
        return self.results.get(context.attachment.network, default)

    @hookimpl
    def delete(self, context):
        self._call("delete", context.attachment.network)
        self.deleted = context

    @hookimpl
    def check(self, context):
        self._call("check", context.attachment.network)

    @hookimpl
    def remove(self, config):
        self._call("remove", config["name"])

    @hookimpl
    def discover(self):
        return self.found

    @hookimpl
    def publishes(self, config):
        return self.publishing is None or config["name"] in self.publishing or self.reason

    def _call(self, verb, network):
        self.calls.append(f"{verb} {network}")
        if f"{verb} {network}" in self.fail:
            raise self.fail[f"{verb} {network}"]


@pytest.fixture
def driver():
    return Recorder()


@pytest.fixture
def notes():
    return []


@pytest.fixture
def make(tmp_path, driver, notes, runs_images):
    def make(value=None, checked=False):
        file = tmp_path / "kurma.json"
        file.write_text(json.dumps(value or {}))
        config = configuration.load(str(file), str(tmp_path / "state"))

        def find(name):
            if name == "missing":
                raise PluginError("network plugin missing is not installed")
            return bound(NetworkHooks, driver, "kurma.networks", name) if checked else driver

        return Networking(
            config,
            find,
            ALIASES.get,
            notes.append,
            lambda: ("lo", "bridge", "cni"),
            lambda: runs_images.get("by"),
        )

    return make


@pytest.fixture
def runs_images():
    """``by``: the plugin that runs images."""
    return {}


def entries(*names, **more):
    return {"container_networks": [{"name": name, "plugin": "cni", **more} for name in names]}


def requests(*names):
    return [NetworkRequest(name) for name in names]


def summary(attachments):
    return [(one.network, one.driver, one.interface) for one in attachments]


# --- what is joined --------------------------------------------------------------------------------------------


def test_without_configuration_lo_and_default(make):
    plan = make().plan(None, (), UUID)
    assert summary(plan) == [("lo", "lo", "lo"), ("default", "bridge", "eth0")]
    assert [one.base for one in plan] == [True, False]
    assert plan[1].config == {"name": "default", "number": 7}


def test_the_documents_example(make):
    networking = make(DOCUMENT)
    plan = networking.plan(requests("mynet"), (), UUID)
    assert summary(plan) == [("lo", "lo", "lo"), ("mynet", "cni", "eth0")]
    expected = {
        k: v for k, v in DOCUMENT["container_networks"][1].items() if k not in ("aci", "containerInterface")
    }
    assert dict(plan[1].config) == expected


def test_entries_that_are_default_replace_the_built_in_one(make):
    plan = make(entries("a", "b", default=True)).plan((), (), UUID)
    assert summary(plan) == [("lo", "lo", "lo"), ("a", "cni", "eth0"), ("b", "cni", "eth1")]


def test_an_entry_may_take_the_name_default(make):
    plan = make(entries("default", type="ptp", number=3)).plan(None, (), UUID)
    assert plan[1].config == {"name": "default", "type": "ptp", "number": 3}


def test_loopback_is_no_default(make):
    """It is always there: an entry that says so takes no pod's network away."""
    networks = [{"name": "lo", "plugin": "lo", "default": True}]
    assert summary(make({"container_networks": networks}).plan(None, (), UUID))[1:] == [
        ("default", "bridge", "eth0")
    ]


def test_a_configuration_names_base_and_default_networks(make, driver):
    value = entries("vpn", "up", "more")
    value |= {"base_networks": ["lo", "vpn"], "default_networks": ["up", "more"]}
    networking = make(value)
    plan = networking.plan(None, (PortMapping(8080, 80),), UUID)
    assert summary(plan)[1:] == [("vpn", "cni", "eth0"), ("up", "cni", "eth1"), ("more", "cni", "eth2")]
    assert [(one.base, bool(one.ports)) for one in plan] == [(True, False)] * 2 + [(False, True), (False, False)]
    driver.results["vpn"] = None
    joined = networking.add_all(plan, **POD)
    assert [one.addresses for one in joined] == [(), (), ("10.1.0.2/16",), ("10.1.0.2/16",)]
    assert [one.network for one in networking.plan(requests("none"), (), UUID)] == ["lo", "vpn"]
    with pytest.raises(UsageError, match='network "vpn" cannot give a pod'):
        networking.plan([NetworkRequest("vpn", ips=("10.1.0.7",))], (), UUID)
    assert [one.network for one in make(value | {"default_networks": []}).plan(None, (), UUID)] == ["lo", "vpn"]


def test_an_entry_that_replaces_a_base_network_is_one(make, driver):
    value = {"container_networks": [{"name": "lo", "plugin": "cni", "optional": True}]}
    plan = make(value).plan(requests("none"), (), UUID)
    assert (plan[0].driver, plan[0].base) == ("cni", True)


def test_without_the_plugin_of_the_default_network(make):
    """Pods that do not join it need it no more than its configuration does."""
    networking = make({"container_networks": [{"name": "default", "plugin": "missing"}]})
    assert networking.plan(requests("none"), (), UUID)
    for _ in range(2):
        with pytest.raises(PluginError, match="is not installed"):
            networking.plan(None, (), UUID)


def test_a_network_that_a_stranger_completes(make, driver):
    """As a default network: chosen when a pod joins, the same from then on, and told by listings."""
    networking = make()
    assert networking.show("default").config == {"name": "default"}
    assert [one.config for one in networking.plan(None, (), UUID)][1] == {"name": "default", "number": 7}
    assert networking.show("default").config == {"name": "default", "number": 7}
    driver.found = {"default-found": {}}
    assert make().show("default-found").problem is None


def test_what_the_entry_says_of_names_is_planned(make):
    value = entries("a", "b")
    value["container_networks"][1]["names"] = False
    assert [one.names for one in make(value).plan(requests("a", "b"), (), UUID)] == [True, True, False]


def test_order_and_interfaces_are_as_asked_for(make):
    wanted = [NetworkRequest("b"), NetworkRequest("a", "eth0"), NetworkRequest("default", "up{{num}}")]
    plan = make(entries("a", "b")).plan(wanted, (), UUID)
    assert [(one.network, one.interface) for one in plan] == [
        ("lo", "lo"), ("b", "eth1"), ("a", "eth0"), ("default", "up0")
    ]  # fmt: skip
    assert plan[2].request == wanted[1]


@pytest.mark.parametrize("name", ["none", "lo"])
def test_none_is_loopback_alone(make, name):
    assert summary(make().plan(requests(name), (), UUID)) == [("lo", "lo", "lo")]


def test_host_is_nothing_at_all(make, notes):
    networking = make()
    assert networking.plan(requests("host"), (), UUID) == ()
    assert networking.shares_host(requests("host"))
    assert not networking.shares_host(requests("none"))
    assert not networking.shares_host(None)
    assert notes == []
    networking.plan(requests("host"), (PortMapping(80, 80),), UUID)
    assert "ports are not published" in notes[0]


@pytest.mark.parametrize("name", ["host", "none", "lo"])
@pytest.mark.parametrize(
    ("wish", "told"),
    [({"interface": "eth7"}, "interface eth7"), ({"ips": ("10.1.0.7",)}, "10.1.0.7"),
     ({"mac": "02:00:00:00:00:01"}, "02:00:00:00:00:01")],
)  # fmt: skip
def test_what_a_network_without_anything_to_give_is_asked_for_is_refused(make, name, wish, told):
    with pytest.raises(UsageError, match=f'network "{name}" cannot give a pod {told}'):
        make().plan([NetworkRequest(name, **wish)], (), UUID)


@pytest.mark.parametrize("names", [("host", "default"), ("none", "default"), ("a", "a"), ("host", "host")])
def test_contradictions_are_refused(make, names):
    with pytest.raises(UsageError):
        make(entries("a")).plan(requests(*names), (), UUID)


def test_an_unknown_network_lists_the_known_ones(make, driver):
    driver.found = {"elsewhere": {}}
    with pytest.raises(NetworkError, match='no network "mynte"') as caught:
        make(entries("mynet")).plan(requests("mynte"), (), UUID)
    assert caught.value.hint == "there are: mynet, lo, default, host, none, elsewhere"


def test_an_image_without_a_plugin_that_runs_images(make):
    networking = make({"container_networks": [{"name": "far", "aci": "file:///net.aci"}]})
    with pytest.raises(NetworkError, match=r"file:///net\.aci.*none runs images"):
        networking.plan(requests("far"), (), UUID)
    assert [info.problem is not None for info in networking.catalog.all() if info.name == "far"] == [True]


def test_an_aci_is_an_alias_first_and_then_an_image(make, runs_images):
    """W1. The image's plugin is told which; without containerInterface it gets no interface (W2)."""
    runs_images["by"] = "aci"
    networking = make({"container_networks": [
        {"name": "alias", "aci": "apcera.com/kurma/cni-netplugin", "type": "ptp"},
        {"name": "image", "aci": "docker:///user/plugin-name:tag", "level": 3},
        {"name": "named", "aci": "example.com/net", "containerInterface": "veth+{{shortuuid}}"},
    ]})  # fmt: skip
    plan = networking.plan(requests("alias", "image", "named"), (), UUID)
    assert summary(plan)[1:] == [("alias", "cni", "eth0"), ("image", "aci", ""), ("named", "aci", "veth+146d7cef")]
    assert plan[2].config == {"name": "image", "level": 3, "aci": "docker:///user/plugin-name:tag"}
    assert plan[3].config == {
        "name": "named",
        "aci": "example.com/net",
        "containerInterface": "veth+{{shortuuid}}",
    }
    assert "aci" not in plan[1].config
    shown = {info.name: (info.driver, info.interface, info.problem) for info in networking.catalog.all()}
    assert shown["image"] == ("aci", "", None)
    assert shown["named"] == ("aci", "veth+{{shortuuid}}", None)
    assert networking.show("image").to_json()["config"]["aci"] == "docker:///user/plugin-name:tag"


def test_a_network_whose_plugin_is_missing_is_listed_with_why(make):
    networking = make(
        {"container_networks": [{"name": "far", "plugin": "missing"}, {"name": "a", "plugin": "cni"}]}
    )
    problems = {info.name: info.problem for info in networking.catalog.all()}
    assert problems["far"] == "network plugin missing is not installed"
    assert {name for name, problem in problems.items() if problem} == {"far"}
    with pytest.raises(PluginError, match="is not installed"):
        networking.plan(requests("far"), (), UUID)
    assert networking.plan(requests("a"), (), UUID)


def test_networks_found_by_a_driver(make, driver):
    driver.found = {"podman": {"type": "bridge"}, "a": {"type": "other"}}
    networking = make(entries("a"))
    assert summary(networking.plan(requests("podman"), (), UUID))[1:] == [("podman", "lo", "eth0")]
    sources = {info.name: info.source for info in networking.catalog.all()}
    assert sources == {"a": "configured", "lo": "built-in", "default": "built-in", "host": "built-in",
                       "none": "built-in", "podman": "found"}  # fmt: skip


def test_a_broken_driver_hides_its_own_networks_alone(make, driver, notes):
    def broken():
        raise NetworkError("unreadable")

    driver.discover = broken
    networking = make(entries("a"))
    assert "a" in {info.name for info in networking.catalog.all()}
    assert "network plugin lo: unreadable" in notes
    notes.clear()
    with pytest.raises(NetworkError, match='no network "far"'):
        networking.plan(requests("far"), (), UUID)
    drivers = [note.split(":")[0] for note in notes]
    assert sorted(drivers) == sorted(set(drivers)), "each is told once"


def test_listing_chooses_nothing(make, driver):
    make().catalog.all()
    assert driver.chosen == {}


def test_ports_go_to_the_first_network_that_publishes(make, driver):
    driver.publishing = {"b", "c"}
    port = PortMapping(8080, 80)
    plan = make(entries("a", "b", "c")).plan(requests("a", "b", "c"), (port,), UUID)
    assert [one.ports for one in plan] == [(), (), (port,), ()]
    driver.publishes = super(Recorder, driver).publishes  # a plugin that says nothing of it is asked to
    assert [one.ports for one in make(entries("a")).plan(requests("a"), (port,), UUID)] == [(), (port,)]
    del driver.publishes
    driver.publishing = set()
    driver.reason = "it is a test"
    for names, told in (
        (("a", "b"), "network a: it is a test; network b: it is a test"),
        (("none",), "no network"),
    ):
        with pytest.raises(NetworkError, match=f"^cannot publish ports: .*{told}") as caught:
            make(entries("a", "b")).plan(requests(*names), (port,), UUID)
        assert caught.value.hint == "no configured network does"
    driver.publishing = {"b", "default"}
    with pytest.raises(NetworkError, match=r"^cannot publish ports: network a: it is a test$") as caught:
        make(entries("a", "b")).plan(requests("a"), (port,), UUID)
    assert caught.value.hint == "networks that publish ports: b, default"


def test_a_plan_survives_its_record(make):
    plan = make(entries("a")).plan(requests("a"), (PortMapping(1, 2),), UUID, {"nameservers": ("10.0.0.1",)})
    assert tuple(Attachment.from_json(json.loads(json.dumps(one.to_json()))) for one in plan) == plan


# --- joining and leaving ---------------------------------------------------------------------------------------


def test_all_are_joined_in_order_and_left_in_reverse(make, driver):
    networking = make(entries("a", "b"))
    plan = networking.plan(requests("a", "b"), (), UUID)
    done = networking.add_all(plan, **POD)
    assert [one.network for one in done] == ["lo", "a", "b"]
    assert [one.result and one.result.addresses[0].address for one in done] == [None, "10.1.0.2/16", "10.1.0.2/16"]
    assert driver.context.namespace == f"/run/netns/kurma-{UUID}"
    networking.delete_all(done, **POD)
    assert driver.calls == ["setup lo", "add lo", "setup a", "add a", "setup b", "add b",
                            "delete b", "delete a", "delete lo"]  # fmt: skip


def test_setup_is_called_once(make, driver):
    networking = make(entries("a"))
    plan = networking.plan(requests("a"), (), UUID)
    for _ in range(3):
        networking.add_all(plan, **POD)
    assert driver.calls.count("setup a") == 1


def test_setup_is_once_and_first_where_many_pods_come_at_once(make, driver):
    networking = make(entries("a"))
    plan = networking.plan(requests("a"), (), UUID)
    setup, begun = driver.setup, threading.Barrier(5)

    def slow(config):
        time.sleep(0.05)
        setup(config)

    def join(number):
        begun.wait(5)
        networking.add_all(plan, pod=f"pod-{number}", pod_name="p", namespace="/run/netns/x")

    driver.setup = slow
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(join, range(5)))
    for name in ("lo", "a"):
        calls = [call for call in driver.calls if call.endswith(f" {name}")]
        assert calls == [f"setup {name}"] + [f"add {name}"] * 5


def test_pods_join_at_once(make, driver):
    """W4: one that takes its time holds up no other."""
    networking = make(entries("a"))
    plan = networking.plan(requests("a"), (), UUID)
    together, add, delete = threading.Barrier(3), driver.add, driver.delete

    def at_once(call):
        def meet(context):
            if context.attachment.network == "a":
                together.wait(5)  # broken, and raised, unless all are in here
            return call(context)

        return meet

    driver.add, driver.delete = at_once(add), at_once(delete)

    def pass_by(number):
        where = {"pod": f"pod-{number}", "pod_name": "p", "namespace": "/run/netns/x"}
        networking.delete_all(networking.add_all(plan, **where), **where)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(pass_by, range(3)))
    assert (driver.calls.count("add a"), driver.calls.count("delete a")) == (3, 3)


def test_delete_gets_what_add_got_always(make, driver):
    """W3: right after, twice, by another process with another configuration, and after every kind of failure."""
    networking = make(entries("a", "b", level=1))
    plan = networking.plan([NetworkRequest("a", "web0", ips=("10.1.0.2",)), NetworkRequest("b")], (), UUID)
    told = {"add": [], "delete": []}
    add, delete = driver.add, driver.delete
    driver.add = lambda context: (told["add"].append(context), add(context))[1]
    driver.delete = lambda context: (told["delete"].append(context), delete(context))[1]

    done = networking.add_all(plan, **POD)
    assert done[1].result is not None
    networking.delete_all(done, **POD)
    networking.delete_all(plan, **POD)
    records = [Attachment.from_json(json.loads(json.dumps(one.to_json()))) for one in done]
    make(entries("a", level=2)).delete_all(records, **POD)
    assert told["delete"] == told["add"][::-1] * 3

    for failure in ({"add b": NetworkError("no")}, {"add b": KeyboardInterrupt()}, {"add b": SystemExit(1)}):
        told["add"].clear(), told["delete"].clear()
        driver.fail = failure
        with pytest.raises(type(failure["add b"])):
            networking.add_all(plan, **POD)
        assert told["delete"] == told["add"][::-1]
        assert len(told["add"]) == 3


def test_a_failure_undoes_itself_and_the_earlier_ones_in_reverse(make, driver):
    networking = make(entries("a", "b", "c"))
    driver.fail = {"add b": NetworkError("no"), "delete b": NetworkError("neither")}
    with pytest.raises(NetworkError, match=r"^no$"):
        networking.add_all(networking.plan(requests("a", "b", "c"), (), UUID), **POD)
    assert driver.calls[4:] == ["setup b", "add b", "delete b", "delete a", "delete lo"]


def test_a_network_that_cannot_work_was_not_joined(make, driver, notes):
    driver.fail["setup default"] = NetworkError("a program is missing")
    networking = make()
    with pytest.raises(NetworkError, match="a program is missing"):
        networking.add_all(networking.plan(None, (), UUID), **POD)
    assert driver.calls[-2:] == ["setup default", "delete lo"]
    assert notes == []


def test_a_failing_undo_is_noted(make, driver, notes):
    networking = make(entries("a"))
    driver.fail = {"add a": NetworkError("no"), "delete a": NetworkError("neither")}
    with pytest.raises(NetworkError):
        networking.add_all(networking.plan(requests("a"), (), UUID), **POD)
    assert notes == ["neither; `kurma gc` tries again"]


def test_ctrl_c_undoes_too(make, driver):
    networking = make(entries("a"))
    driver.fail = {"add a": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        networking.add_all(networking.plan(requests("a"), (), UUID), **POD)
    assert driver.calls[-2:] == ["delete a", "delete lo"]


@pytest.mark.parametrize("where", ["configuration", "pod"])
def test_an_optional_network_may_fail(make, driver, notes, where):
    networking = make(entries("a", "b", optional=where == "configuration"))
    driver.fail = {"add a": NetworkError("no")}
    wishes = [NetworkRequest("a", optional=where == "pod"), NetworkRequest("b")]
    plan = networking.plan(wishes, (), UUID)
    done = networking.add_all([Attachment.from_json(one.to_json()) for one in plan], **POD)
    assert [one.network for one in done] == ["lo", "b"]
    assert "delete a" in driver.calls
    assert notes == ["the pod runs without the optional network a: no"]


def test_ports_are_not_left_to_an_optional_network(make, driver, notes):
    """It may fail, and the pod go without it."""
    networking = make(entries("a", "b", "c"))
    port = PortMapping(8080, 80)
    wishes = [NetworkRequest("a", optional=True), NetworkRequest("b"), NetworkRequest("c")]
    assert {one.network for one in networking.plan(wishes, [port], UUID) if one.ports} == {"b"}
    optional = make(entries("a", "b", optional=True))
    plan = optional.plan([NetworkRequest("a"), NetworkRequest("b")], [port], UUID)
    assert {one.network for one in plan if one.ports} == {"a"}, "better than none"
    driver.fail["add a"] = NetworkError("no")
    optional.add_all(plan, **POD)
    assert notes == ["the pod runs without the optional network a, and its ports 8080/tcp are not published: no"]


@pytest.mark.parametrize("address", ["224.0.0.1", "ff02::1"])
def test_a_port_of_the_manifest_at_no_hosts_address(make, address):
    with pytest.raises(NetworkError, match=f"port 8080 of the host cannot be published: {address} is a multicast"):
        make(entries("a")).plan([NetworkRequest("a")], [PortMapping(8080, 80, host_ip=address)], UUID)


def test_loopback_is_never_optional(make, driver):
    """W3: lo is always up, whatever an entry of that name says."""
    networking = make({"container_networks": [{"name": "lo", "plugin": "lo", "optional": True}]})
    driver.fail = {"add lo": NetworkError("no")}
    with pytest.raises(NetworkError, match=r"^no$"):
        networking.add_all(networking.plan(requests("none"), (), UUID), **POD)


@pytest.mark.parametrize(
    ("result", "interface", "said"),
    [
        (None, None, 'network "a" gave the pod no address'),
        (
            NetworkResult((AddressResult("hello"),)),
            None,
            "network \"a\" gave the pod 'hello', which is not an address",
        ),
        (
            None,
            "a/b",
            "network \"a\": impossible interface name 'a/b': only visible ASCII characters without / : %",
        ),
    ],
)
def test_an_error_of_a_wrong_answer_names_the_plugin(make, driver, result, interface, said):
    """18.3."""
    driver.results, driver.interfaces = {"a": result}, {"a": interface}
    networking = make({"container_networks": [{"name": "a", "plugin": "recorder"}]}, checked=True)
    with pytest.raises(NetworkError) as caught:
        networking.add_all(networking.plan(requests("a"), (), UUID), **POD)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(f" (by network plugin 'recorder' of {__name__})")


@pytest.mark.parametrize("result", [None, NetworkResult(())])
def test_a_result_without_address_fails(make, driver, result):
    networking = make(entries("a"))
    driver.results = {"a": result}
    with pytest.raises(NetworkError, match="gave the pod no address"):
        networking.add_all(networking.plan(requests("a"), (), UUID), **POD)
    assert driver.calls[-2:] == ["delete a", "delete lo"]


@pytest.mark.parametrize(
    ("result", "wrong"),
    [
        (NetworkResult((AddressResult("10.1.0.2"),)), "10.1.0.2"),
        (NetworkResult((AddressResult("10.1.0.2/16"), AddressResult("somewhere"))), "somewhere"),
        (NetworkResult((AddressResult("10.1.0.2/16", "10.1.0.0/16"),)), "10.1.0.0/16"),
    ],
)
def test_a_result_that_is_no_address_fails(make, driver, result, wrong):
    networking = make(entries("a"))
    driver.results = {"a": result}
    with pytest.raises(NetworkError, match=f"gave the pod '{wrong}', which is not an address"):
        networking.add_all(networking.plan(requests("a"), (), UUID), **POD)
    assert driver.calls[-2:] == ["delete a", "delete lo"]


def test_a_result_that_is_none_of_ours_names_the_plugin(make, driver):
    networking = make(entries("a"), checked=True)
    driver.results = {"a": {"ip4": {"ip": "10.1.0.2/16"}}}
    with pytest.raises(PluginError, match=r'^network "a": network plugin .* answered add with .*, not Net'):
        networking.add_all(networking.plan(requests("a"), (), UUID), **POD)


@pytest.mark.parametrize(("ip", "good"), [("10.1.0.2", True), ("10.1.0.2/16", True), ("10.1.0.2/24", False),
                                          ("10.1.0.3", False)])  # fmt: skip
def test_the_address_asked_for_is_the_one_given(make, ip, good):
    networking = make(entries("a"))
    plan = networking.plan([NetworkRequest("a", ips=(ip,))], (), UUID)
    if good:
        networking.add_all(plan, **POD)
    else:
        with pytest.raises(NetworkError, match="instead of"):
            networking.add_all(plan, **POD)


def test_leaving_goes_on_after_a_failure(make, driver):
    networking = make(entries("a", "b"))
    plan = networking.plan(requests("a", "b"), (), UUID)
    driver.fail = {"delete b": NetworkError("stuck"), "delete a": NetworkError("too")}
    with pytest.raises(NetworkError, match="stuck"):
        networking.delete_all(plan, **POD)
    assert driver.calls == ["delete b", "delete a", "delete lo"]


def test_a_plugins_own_exceptions_name_it(make, driver):
    networking = make(entries("a"), checked=True)
    driver.fail = {"add a": ZeroDivisionError("by zero")}
    with pytest.raises(
        PluginError, match=r'^network "a": network plugin .* failed in add: ZeroDivisionError: by zero'
    ):
        networking.add_all(networking.plan(requests("a"), (), UUID), **POD)


# --- networks themselves ---------------------------------------------------------------------------------------


def test_remove_refuses_what_is_used(make, driver):
    networking = make(entries("a"))
    with pytest.raises(NetworkError, match='network "a" is in use by one, two'):
        networking.remove("a", used_by=["two", "one"])
    assert driver.calls == []
    networking.remove("a")
    assert driver.calls == ["remove a"]


def test_a_network_that_was_removed_is_set_up_again(make, driver):
    networking = make(entries("a"))
    plan = networking.plan(requests("a"), (), UUID)
    networking.add_all(plan, **POD)
    networking.remove("a")
    networking.add_all(plan, **POD)
    assert driver.calls.count("setup a") == 2


def test_an_unused_network_is_not_removed(make, driver):
    networking = make()
    networking.remove("default")
    assert driver.calls == []
    networking.plan(None, (), UUID)
    networking.remove("default")
    assert driver.calls == ["remove default"]


@pytest.mark.parametrize("name", ["host", "none", "nowhere"])
def test_remove_of_nothing(make, name):
    with pytest.raises(NetworkError):
        make().remove(name)


def test_show(make):
    networking = make(entries("a", default=True, containerInterface="veth+{{shortuuid}}"))
    assert make(entries("a", optional=True)).show("a").optional
    assert [networking.show("default").default, make().show("default").default] == [False, True]
    shown = networking.show("a").to_json()
    assert shown == {"name": "a", "driver": "cni", "source": "configured", "interface": "veth+{{shortuuid}}",
                     "default": True, "optional": False, "names": True,
                     "config": {"name": "a"}, "problem": None}  # fmt: skip
    with pytest.raises(KurmaError):
        networking.show("b")


def test_an_add_that_is_no_longer_wanted_is_abandoned_and_undone(make, driver):
    """Its driver is named; if it succeeds in the end, the network is left again."""
    networking, begun, over = make(entries("a")), threading.Event(), threading.Event()
    plan = networking.plan(requests("a"), (), UUID)
    add = driver.add

    def slow(context):
        if context.attachment.network == "a":
            begun.set()
            over.wait(20)
        return add(context)

    driver.add = slow
    with pytest.raises(NetworkError, match=r'network "a": given up: .*: add has taken [0-9]+ s'):
        networking.add_all(plan, **POD, wanted=lambda: not begun.is_set())
    assert driver.calls[-2:] == ["delete a", "delete lo"]
    over.set()
    until(lambda: driver.calls[-2:] == ["add a", "delete a"], lambda: str(driver.calls))


def test_an_add_that_ends_after_the_pod_was_started_again_is_not_undone(make, driver):
    networking, begun, over = make(entries("a")), threading.Event(), threading.Event()
    plan = networking.plan(requests("a"), (), UUID)
    add = driver.add

    def slow(context):
        begun.set()
        over.wait(20)
        add(context)
        driver.calls.append("late")
        return NetworkResult((AddressResult("10.1.0.2/16", "10.1.0.1"),))

    driver.add = slow
    with pytest.raises(NetworkError, match="given up"):
        networking.add(plan[-1], **POD, wanted=lambda: not begun.is_set())
    driver.add = add
    networking.add(plan[-1], **POD)
    before = driver.calls.count("delete a")
    over.set()
    until(lambda: "late" in driver.calls)
    until(lambda: not [one for one in threading.enumerate() if one.name == "kurma-call"], "the call's end")
    assert driver.calls.count("delete a") == before


def test_waiting_for_an_add_ends_with_the_operation(make, driver):
    networking, over, operation = make(entries("a")), threading.Event(), Cancellation()
    plan = networking.plan(requests("a"), (), UUID)

    def slow(context):
        operation.cancel()
        over.wait(20)

    driver.add = slow
    try:
        with governing(operation), pytest.raises(Cancelled):
            networking.add(plan[-1], **POD)
        assert driver.calls[-1] == "delete a"
    finally:
        over.set()
