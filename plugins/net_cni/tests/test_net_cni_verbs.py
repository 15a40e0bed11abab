"""What each version of CNI has, with plugins that note down what they are told: documents, VERSION, STATUS, GC."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from kurma_net_cni.driver import CniNetwork
from kurma_net_cni.records import Records
from kurma_testing.networks import context

from kurma_core.errors import NetworkError
from kurma_core.models.isolator import TrafficLimit
from kurma_core.models.network import NetworkRequest, PortMapping
from plugins.net_cni.tests.stub import POD, RESULT, Stub, calls

OLD = {"ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0"}]}}
MIDDLE = {"ips": [{"version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0}],
          "interfaces": [{"name": "eth0", "sandbox": "/x"}], "routes": [{"dst": "0.0.0.0/0"}]}  # fmt: skip
NEW = {**MIDDLE, "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0}]}
ALL = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")


@pytest.fixture
def bin_dir(tmp_path):
    directory = tmp_path / "bin"
    directory.mkdir()
    return directory


@pytest.fixture
def notes():
    return []


@pytest.fixture
def make_driver(bin_dir, tmp_path, notes):
    def make(state="state", config_dirs=()):
        return CniNetwork(
            [str(bin_dir)],
            5,
            Records(str(tmp_path / state)),
            tuple(str(one) for one in config_dirs),
            notes.append,
            str(tmp_path / "neighbours"),
        )

    return make


@pytest.fixture
def driver(make_driver):
    return make_driver()


@pytest.fixture
def one(bin_dir):
    return Stub(bin_dir, "one")


def config(*names, version="1.1.0", **more):
    return {"name": "n", "cniVersion": version, "plugins": [{"type": name} for name in names], **more}


# --- versions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "result"),
    [("0.1.0", OLD), ("0.2.0", OLD), ("0.3.0", MIDDLE), ("0.3.1", MIDDLE), ("0.4.0", MIDDLE), ("1.0.0", NEW),
     ("1.1.0", NEW)],
)  # fmt: skip
@pytest.mark.parametrize("says", [True, False], ids=["told", "untold"])
def test_every_version_from_join_to_leave(driver, bin_dir, version, result, says):
    """What DEL and CHECK are told, and whether the version has them, and every shape of a result; also of one that
    does not say its version, which is the configuration's then."""
    stub = Stub(bin_dir, "one", [version], {**result, "cniVersion": version} if says else result)
    other = Stub(bin_dir, "two", [version], {**result, "cniVersion": version})
    pod = context(POD, config("one", "two", version=version))
    driver.setup(pod.attachment.config)
    driver.status(pod.attachment.config)
    joined = driver.add(pod)
    assert [(a.address, a.gateway) for a in joined.addresses] == [("10.0.0.2/24", "10.0.0.1")]
    assert joined.routes == (("0.0.0.0/0", None),)
    assert stub.read("ADD")["cniVersion"] == version
    assert other.read("ADD")["prevResult"] == {**result, "cniVersion": version}
    driver.check(pod)
    driver.delete(pod)
    driver.repair([pod.attachment.config], ())
    number = tuple(int(part) for part in version.split("."))
    assert stub.was_asked("CHECK") is (number >= (0, 4, 0))
    assert ("prevResult" in stub.read("DEL")) is (number >= (0, 4, 0))
    assert stub.was_asked("STATUS") is stub.was_asked("GC") is (number >= (1, 1, 0))


def test_the_highest_version_that_all_speak_is_spoken(driver, bin_dir):
    """cniVersions (1.1.0): what plugins answer to VERSION decides, those for addresses included; and it is spoken
    to the end, whatever is installed meanwhile."""
    one, two = Stub(bin_dir, "one", ALL), Stub(bin_dir, "two", ["0.3.1", "0.4.0", "1.0.0"])
    ipam = Stub(bin_dir, "addresses", ["0.1.0", "0.4.0"])
    several = config("one", "two", version="0.3.1", cniVersions=["0.3.1", "0.4.0", "1.0.0", "1.1.0", "9.0.0"])
    several["plugins"][1]["ipam"] = {"type": "addresses"}
    pod = context(POD, several)
    driver.add(pod)
    assert one.read("ADD")["cniVersion"] == two.read("ADD")["cniVersion"] == "0.4.0"
    for stub in (one, two, ipam):
        Stub(bin_dir, stub.name, ["1.1.0"])
        os.utime(bin_dir / stub.name, (1, 1))
    driver.check(pod)
    driver.delete(pod)
    assert one.read("CHECK")["cniVersion"] == one.read("DEL")["cniVersion"] == "0.4.0"
    driver.add(pod)
    assert one.read("ADD")["cniVersion"] == "1.1.0"
    Stub(bin_dir, "two", ["0.2.0"])
    os.utime(bin_dir / "two", (2, 2))
    with pytest.raises(NetworkError, match=r'"n" is of CNI 1.1.0, 1.0.0, 0.4.0, 0.3.1, and its .* none of these'):
        driver.setup(several)


def test_status_tells_who_does_not_speak_the_version(driver, bin_dir, one):
    Stub(bin_dir, "two", ["0.3.0", "1.0.0"])
    driver.setup(config("one", "two"))  # not asked at every join: ADD tells it, too
    with pytest.raises(
        NetworkError, match=r'network "n" is of CNI 1.1.0, and its plugin two speaks 0.3.0, 1.0.0$'
    ):
        driver.status(config("one", "two"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [("[]", "does not say which versions"), ('{"supportedVersions": [1]}', "does not say which versions"),
     ("nonsense", "printed no result but nonsense"), ("", "printed no result but nothing")],
)  # fmt: skip
def test_no_answer_to_version(driver, bin_dir, one, answer, why):
    (bin_dir / "one.versions").write_text(answer)
    with pytest.raises(NetworkError, match=why):
        driver.status(config("one"))


def test_a_plugin_from_before_version(driver, bin_dir):
    """0.1.0 had no VERSION: the plugin's own words tell."""
    stub = Stub(bin_dir, "one", None, OLD)
    stub.fails("VERSION", msg="unknown CNI_COMMAND: VERSION")
    driver.status(config("one", version="0.1.0"))
    assert set(stub.environment("VERSION")) >= {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}
    with pytest.raises(NetworkError, match=r"speaks 0\.1\.0$"):
        driver.status(config("one", version="0.2.0"))


def test_a_version_that_is_refused_at_join_has_a_hint(driver, one):
    one.fails("ADD", code=1, msg="incompatible CNI versions")
    with pytest.raises(NetworkError, match="failed: incompatible CNI versions") as caught:
        driver.add(context(POD, config("one", version="0.4.0")))
    assert caught.value.hint == "one speaks 1.0.0, 1.1.0: cniVersion is to be one of these"


# --- documents -------------------------------------------------------------------------------------------------


def test_every_capability_arrives_as_the_conventions_have_it(driver, bin_dir, one):
    """And what is the protocol's own, or declared to the runtime, is not handed on."""
    capabilities = dict.fromkeys(("portMappings", "bandwidth", "ips", "mac", "dns"), True)
    value = config("one")
    value["plugins"][0] |= {"capabilities": capabilities, "cni.dev/x": 1, "own": {"deep": [None]}}
    burst = (1 << 16) * 8  # the least
    rates = {"ingressRate": 8000, "ingressBurst": burst, "egressRate": 16000, "egressBurst": burst}
    dns = {"servers": ["192.0.2.53"], "searches": ["example.org"], "options": ["ndots:2"]}
    pod = context(
        POD,
        value,
        request=NetworkRequest("n", ips=("10.0.0.2", "fd00::2"), mac="02:00:00:00:00:01"),
        ports=(PortMapping(8080, 80), PortMapping(53, 5353, "udp", "::1")),
        limits=(TrafficLimit("in", 1000), TrafficLimit("out", 2000)),
        dns={"nameservers": ("192.0.2.53",), "search": ("example.org",), "options": ("ndots:2",)},
    )
    driver.add(pod)
    driver.delete(pod)
    for verb in ("ADD", "DEL"):
        document = one.read(verb)
        document.pop("prevResult", None)
        assert document == {
            "type": "one",
            "name": "n",
            "cniVersion": "1.1.0",
            "own": {"deep": [None]},
            "runtimeConfig": {
                "portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
                    {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "::1"},
                ],
                "bandwidth": rates,
                "dns": dns,
                "ips": ["10.0.0.2", "fd00::2"],
                "mac": "02:00:00:00:00:01",
            },
        }
        assert one.environment(verb)["CNI_ARGS"] == "IgnoreUnknown=1"


@pytest.mark.parametrize(("key", "has"), [("disableCheck", "CHECK"), ("disableGC", "GC")])
@pytest.mark.parametrize("value", [True, "true"])
def test_check_and_gc_can_be_unwanted(driver, one, key, has, value):
    pod = context(POD, config("one", **{key: value}))
    driver.add(pod)
    driver.check(pod)
    driver.repair([pod.attachment.config], [POD])
    assert {verb: one.was_asked(verb) for verb in ("CHECK", "GC")} == {"CHECK": has != "CHECK", "GC": has != "GC"}


# --- STATUS ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [({"code": 50, "msg": "no agent"}, "no agent", "what it needs on this host"),
     ({"code": 51, "msg": "agent", "details": "is down"}, "agent: is down", "joined already may be cut off"),
     ({"code": 11, "msg": "starting"}, "starting", "tried again later"),
     ({"code": 999, "msg": "else"}, "else", None)],
)  # fmt: skip
def test_a_plugin_that_is_not_ready_is_not_asked_to_add(driver, bin_dir, one, error, said, hint):
    Stub(bin_dir, "two").fails("STATUS", **error)
    for ask in (driver.setup, driver.status):
        with pytest.raises(NetworkError) as caught:
            ask(config("one", "two"))
        assert caught.value.message == f'cannot join network "n": CNI plugin two failed: {said}'
        assert caught.value.data["code"] == error["code"]
        assert (hint in caught.value.hint) if hint else caught.value.hint is None
    assert calls(bin_dir) == ["STATUS one", "STATUS two"] * 2
    assert set(one.environment("STATUS")) == {"CNI_COMMAND", "CNI_PATH"}
    assert one.read("STATUS") == {"type": "one", "name": "n", "cniVersion": "1.1.0"}


# --- GC --------------------------------------------------------------------------------------------------------


def attachments(*pods):
    return [{"containerID": pod, "ifname": "eth0"} for pod in pods]


def test_gc_is_told_what_is_to_stay(driver, bin_dir, one):
    """Pods that are gone are left by DEL first: GC is no replacement of it."""
    Stub(bin_dir, "two")
    value = config("one", "two")
    for pod in ("a", "b", "gone"):
        driver.add(context(pod, value))
    driver.add(context("c", {**value, "name": "other"}))
    assert driver.leaks([value], ["a", "b", "c"])[0].pod == "gone"
    calls(bin_dir)
    assert list(driver.repair([value], ["a", "b", "c"])) == []
    assert calls(bin_dir) == ["DEL two", "DEL one", "GC one", "GC two"]
    document = one.read("GC")
    assert document["cni.dev/valid-attachments"] == document["cni.dev/attachments"] == attachments("a", "b")
    assert set(document) == {"type", "name", "cniVersion", "cni.dev/valid-attachments", "cni.dev/attachments"}
    assert set(one.environment("GC")) == {"CNI_COMMAND", "CNI_PATH"}


def test_gc_is_not_told_to_keep_what_could_not_be_left(driver, one):
    driver.add(context("stays", config("one")))
    driver.add(context("gone", config("one")))
    one.fails("DEL", code=100, msg="stuck")
    assert [leak.pod for leak in driver.repair([config("one")], ["stays"])] == ["gone"]
    assert one.read("GC")["cni.dev/valid-attachments"] == attachments("stays")


def test_gc_goes_on_after_a_failure_and_tells_it(driver, bin_dir, one, notes):
    Stub(bin_dir, "two")
    one.fails("GC", code=100, msg="stuck")
    (left,) = driver.repair([config("one", "two")], ())
    assert (left.network, left.why) == ("n", 'cannot clean up network "n": CNI plugin one failed: stuck')
    assert notes == [left.why]
    assert calls(bin_dir) == ["GC one", "GC two"]


def test_gc_spares_the_pods_of_other_state_directories(make_driver, one):
    first, second = make_driver("first"), make_driver("second")
    first.add(context("mine", config("one")))
    second.add(context("theirs", config("one")))
    first.repair([config("one")], ["mine"])
    assert one.read("GC")["cni.dev/valid-attachments"] == attachments("mine", "theirs")
    second.repair([config("one")], ["theirs"])
    assert one.read("GC")["cni.dev/valid-attachments"] == attachments("theirs", "mine")


def test_no_gc_of_networks_that_others_join_too(make_driver, tmp_path, one):
    """Of /etc/cni/net.d: nobody tells us which pods other runtimes have there."""
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d" / "n.conflist").write_text(json.dumps(config("one")))
    driver = make_driver(config_dirs=[tmp_path / "net.d"])
    driver.repair([driver.discover()["n"]], ())
    assert not one.was_asked("GC")


# --- many at once ----------------------------------------------------------------------------------------------

MEETING = """#!/bin/sh
[ "$CNI_COMMAND" = ADD ] || exit 0
mkdir "$0.inside" || { echo met >>"$0.met"; exit 1; }
sleep 0.05
rmdir "$0.inside"
cat "$0.result"
"""


@pytest.mark.parametrize("kind", ["firewall", "portmap"])
def test_plugins_that_make_chains_do_not_meet(make_driver, bin_dir, kind):
    """Debian's look whether a chain is there, and then make it; whosever state directory it is."""
    Stub(bin_dir, kind)
    (bin_dir / kind).write_text(MEETING)
    drivers = [make_driver("first"), make_driver("second")]
    with ThreadPoolExecutor(6) as pool:
        pods = [context(f"p{number}", config(kind, version="1.0.0")) for number in range(6)]
        list(pool.map(lambda driver, pod: driver.add(pod), drivers * 3, pods))
    assert not (bin_dir / f"{kind}.met").exists()


# --- what is left of pods that are gone ------------------------------------------------------------------------


def test_pods_that_are_gone_are_left_without_any_configuration(driver, make_driver, bin_dir, one):
    """The record has all that DEL takes: another process finds it, and the network is configured no more."""
    pod = context(
        "p1",
        config("one", version="1.0.0"),
        request=NetworkRequest("n", mac="02:00:00:00:00:01"),
        interface="eth3",
    )
    driver.add(pod)
    again = make_driver()
    assert [(leak.kind, leak.network, leak.pod, leak.why) for leak in again.leaks([], ())] == [
        ("record", "n", "p1", "its pod is gone")
    ]
    assert again.leaks([], ["p1"]) == []
    assert list(again.repair([], ["p1"])) == []
    assert not one.was_asked("DEL")
    assert list(again.repair([], ())) == []
    assert one.read("DEL")["prevResult"] == RESULT
    said = one.environment("DEL")
    assert (said["CNI_CONTAINERID"], said["CNI_IFNAME"]) == ("p1", "eth3")
    assert "MAC=02:00:00:00:00:01" in said["CNI_ARGS"]
    calls(bin_dir)
    assert list(again.repair([], ())) == []
    assert calls(bin_dir) == []


def test_what_cannot_be_left_is_told_and_tried_again(driver, one, notes):
    driver.add(context("p1", config("one", version="1.0.0")))
    one.fails("DEL", code=100, msg="stuck")
    (left,) = driver.repair([], ())
    assert (left.pod, left.why) == ("p1", "its pod is gone")
    assert notes == ['cannot leave network "n": CNI plugin one failed: stuck']
    one.succeeds("DEL")
    assert list(driver.repair([], ())) == []


@pytest.mark.parametrize(
    "wrong",
    [{"name": "n"}, {"name": "n", "type": 7}, config("one", version="0.3.1", cniVersions=["0.3.1", "0.4.0"])],
    ids=["nothing-to-run", "no-program", "no-version"],
)
def test_a_configuration_that_no_pod_could_join_is_left(driver, bin_dir, wrong):
    """Else the pod could never be taken down: the configuration is kept with it."""
    one = Stub(bin_dir, "one", ["0.2.0"])
    pod = context("p1", wrong)
    with pytest.raises(NetworkError):
        driver.setup(wrong)
    driver.delete(pod)
    assert not one.was_asked("DEL")


def test_a_configuration_that_went_wrong_after_a_pod_has_joined_leaves_nothing_unsaid(driver, one):
    driver.add(context("p1", config("one", version="1.0.0")))
    with pytest.raises(NetworkError, match="either type"):
        driver.delete(context("p1", {"name": "n"}))
    driver.delete(context("p1", config("one", version="1.0.0")))
    assert one.was_asked("DEL")


def test_a_torn_record_of_a_pod_that_is_gone(driver, one, tmp_path, notes):
    driver.add(context("p1", config("one", version="1.0.0")))
    (record,) = (tmp_path / "state" / "results").iterdir()
    record.write_text("{")
    (left,) = driver.repair([], ())
    assert left.pod == "p1"
    assert notes == ['eth0 of pod p1: its record is damaged, and network "n" is not configured']
    assert list(driver.repair([config("one", version="1.0.0")], ())) == []
    assert one.environment("DEL")["CNI_CONTAINERID"] == "p1"
