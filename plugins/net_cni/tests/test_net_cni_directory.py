"""A network whose configuration is a directory of files, and the arguments that a request gives to plugins."""

import json
import os

import pytest
from kurma_net_cni.discover import CONF_FILE, first_network
from kurma_net_cni.driver import CniNetwork
from kurma_net_cni.records import Records
from kurma_testing.networks import context

from kurma_core.errors import NetworkError
from kurma_core.models.network import NetworkRequest, PortMapping
from plugins.net_cni.tests.stub import POD, Stub, calls

PORT = PortMapping(8080, 80, "tcp", "192.0.2.1")


@pytest.fixture
def net_d(tmp_path):
    directory = tmp_path / "net.d"
    directory.mkdir()
    return directory


@pytest.fixture
def stub(tmp_path):
    (tmp_path / "bin").mkdir()
    return Stub(tmp_path / "bin", "one")


@pytest.fixture
def notes():
    return []


@pytest.fixture
def driver(tmp_path, stub, net_d, notes):
    records = Records(str(tmp_path / "state"))
    bins, dirs = [str(tmp_path / "bin")], (str(tmp_path / "none"), str(net_d))
    return CniNetwork(bins, 5, records, dirs, notes.append, str(tmp_path / "neighbours"))


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def chain(name, *types, version="1.0.0", **more):
    return {"name": name, "cniVersion": version, "plugins": [{"type": kind, **more} for kind in types]}


def chosen(driver, net_d):
    return driver.complete({"name": "node", "conf_dir": str(net_d)}, choose=True)


# --- the choice ------------------------------------------------------------------------------------------------


def test_the_first_valid_file_counts(net_d):
    """C6b: among the files .conflist, .conf and .json the first by name that is valid."""
    for name, value in {
        "00-ignored.txt": chain("ignored", "one"),
        "01-torn.conflist": "{",
        "02-list.conf": chain("wrong", "one"),
        "03-single.conflist": {"name": "wrong", "type": "one"},
        "04-empty.conflist": chain("empty"),
        "05-nameless.conf": {"type": "one"},
        "06-escape.json": {"name": "x", "type": "../../bin/sh"},
        "07-untyped.json": {"name": "x"},
        "20-right.json": {"name": "right", "cniVersion": "0.4.0", "type": "one", "mtu": 1400},
        "30-later.conflist": chain("later", "one"),
    }.items():
        write(net_d / name, value)
    os.mkfifo(net_d / "08-pipe.conf")
    (net_d / "09-gone.conf").symlink_to("nowhere")
    notes = []
    found = first_network(str(net_d), notes.append)
    assert found[CONF_FILE] == str(net_d / "20-right.json")
    assert (found["name"], found["cniVersion"]) == ("right", "0.4.0")
    assert [(one["type"], one["mtu"]) for one in found["plugins"]] == [("one", 1400)]
    assert [note.partition(" ")[0].rpartition("/")[2][:2] for note in notes] == [f"0{n}" for n in range(1, 8)]
    assert notes[1].endswith("it has a list of plugins; the name of such a file ends in .conflist")


def test_a_directory_without_a_valid_file_says_why(net_d, tmp_path):
    with pytest.raises(NetworkError, match=r"in .*/net.d: it has no file \*.conflist, \*.conf or \*.json"):
        first_network(str(net_d), print)
    with pytest.raises(NetworkError, match="no usable CNI configuration in /nowhere"):
        first_network("/nowhere", print)
    write(net_d / "1.conf", "[]")
    with pytest.raises(NetworkError, match=r"net.d: /.*/1.conf is not a usable CNI configuration: it holds no"):
        first_network(str(net_d), lambda _: None)


def test_the_directory_is_read_at_each_use(driver, net_d, notes):
    """A file that comes later, comes before another, changes, or goes counts at once; a fault is told once."""
    with pytest.raises(NetworkError, match="no usable CNI configuration"):
        chosen(driver, net_d)
    net_d.rmdir()
    assert driver.discover() == {}
    net_d.mkdir()
    write(net_d / "50-b.conflist", chain("b", "one"))
    assert chosen(driver, net_d)["name"] == "b"
    assert driver.discover()["cni"] == {"conf_dir": str(net_d)}
    write(net_d / "10-a.conf", "{")
    assert [chosen(driver, net_d)["name"] for _ in range(3)] == ["b"] * 3
    assert len(notes) == 1
    write(net_d / "10-a.conf", {"name": "a", "type": "one"})
    assert chosen(driver, net_d)["name"] == "a"
    (net_d / "10-a.conf").unlink()
    (net_d / "50-b.conflist").unlink()
    with pytest.raises(NetworkError, match="no usable CNI configuration"):
        chosen(driver, net_d)


def test_a_wrong_entry_is_refused(driver):
    wrong = (({"conf_dir": "net.d"}, "not an absolute path"), ({"conf_dir": "/x", "type": "one"}, "type"))
    for entry, why in wrong:
        with pytest.raises(NetworkError, match=why):
            driver.check_config({"name": "node", **entry})
        with pytest.raises(NetworkError, match=why):
            driver.complete({"name": "node", **entry}, choose=False)
    driver.check_config({"name": "node", "conf_dir": "/x"})
    assert driver.interface({"name": "node", "conf_dir": "/x"}) is None
    driver.remove({"name": "node", "conf_dir": "/x"})


# --- joining ---------------------------------------------------------------------------------------------------


def test_a_pod_leaves_the_network_that_it_joined(driver, stub, net_d, tmp_path):
    """Also when the file names other programs by then, or is gone, and its record has CNI's own name."""
    write(net_d / "10-a.conflist", chain("first", "one", version="1.1.0"))
    pod = context(POD, chosen(driver, net_d), request=NetworkRequest("node"))
    driver.setup(pod.attachment.config)
    driver.add(pod)
    document = stub.read("ADD")
    assert (document["name"], document["type"]) == ("first", "one")
    assert CONF_FILE not in document
    write(net_d / "10-a.conflist", chain("second", "two"))
    with pytest.raises(NetworkError, match='needs the CNI plugin "two"'):
        driver.setup(chosen(driver, net_d))
    driver.repair([chosen(driver, net_d)], {POD})  # it is joined, so that nothing of it is left over
    assert calls(tmp_path / "bin") == ["STATUS one", "ADD one"]
    (net_d / "10-a.conflist").unlink()
    driver.check(pod)
    driver.delete(pod)
    assert stub.read("DEL")["prevResult"] == stub.result
    assert calls(tmp_path / "bin") == ["CHECK one", "DEL one"]


def test_garbage_of_other_runtimes_stays(driver, stub, net_d):
    write(net_d / "10-a.conflist", chain("first", "one", version="1.1.0"))
    driver.repair([chosen(driver, net_d)], ())
    assert not stub.was_asked("GC")


def test_ports_of_a_network_that_does_not_publish_them(driver, stub, net_d, notes):
    """Some networks of Kubernetes publish ports without CNI's capability: their pods must start."""
    write(net_d / "10-a.conflist", chain("first", "one"))
    assert driver.publishes(chosen(driver, net_d)) is True
    pod = context(POD, chosen(driver, net_d), ports=(PORT,))
    driver.add(pod)
    assert "runtimeConfig" not in stub.read("ADD")
    assert notes[0].startswith('network "first" cannot publish ports: ')
    driver.delete(pod)
    write(net_d / "10-a.conflist", chain("first", "one", capabilities={"portMappings": True}))
    pod = context(POD, chosen(driver, net_d), ports=(PORT,))
    driver.add(pod)
    told = stub.read("ADD")["runtimeConfig"]["portMappings"]
    assert told == [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]
    driver.delete(pod)


def test_arguments_reach_every_call(driver, stub, net_d):
    write(net_d / "10-a.conflist", chain("first", "one"))
    args = {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web-0", "K8S_POD_UID": "1-2"}
    request = NetworkRequest("node", ips=("10.0.0.7",), args=args)
    pod = context(POD, chosen(driver, net_d), request=request)
    driver.add(pod)
    driver.check(pod)
    driver.delete(pod)
    told = "IgnoreUnknown=1;IP=10.0.0.7;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=1-2"
    assert [stub.environment(verb)["CNI_ARGS"] for verb in ("ADD", "CHECK", "DEL")] == [told] * 3
