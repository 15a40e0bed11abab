"""Pods that find each other by name, looked up by the resolvers that images have (W10)."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from kurma_core.api.pods import DnsRequest
from kurma_core.linux.cgroups import CgroupTree
from tests.integration.networking.resolvers import LOOKUPS, NameServer, resolver_archive
from tests.integration.networking.world import NEIGHBOUR, SERVER, world_around
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root


#: Which plugin serves the networks.
KINDS = pytest.mark.parametrize("town", ["bridge", "cni"], indirect=True)


def network(kind, name, number, **more):
    subnets = [f"10.77.{number}.0/24", f"fd77:0:0:{number}::/64"]
    if kind == "bridge":
        return {"name": name, "plugin": "bridge", "bridge": f"names{number}", "subnets": subnets, **more}
    return {
        "name": name,
        "plugin": "cni",
        "cniVersion": "1.0.0",
        "type": "bridge",
        "bridge": f"names{number}",
        "isGateway": True,
        "ipMasq": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": subnet}] for subnet in subnets],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
        **more,
    }


@pytest.fixture(scope="module")
def resolvers(tmp_path_factory):
    return resolver_archive(str(tmp_path_factory.mktemp("resolvers")))


@pytest.fixture
def town(make_town, request):
    """A house whose pods have resolvers, and three networks, ``quiet`` without names."""
    return make_town(getattr(request, "param", "cni"))


@pytest.fixture
def make_town(make_house, resolvers):
    """``make_town(KIND, KEY=…)``: the same with more configuration."""
    with contextlib.ExitStack() as stack:
        yield lambda kind="cni", **config: stack.enter_context(the_town(make_house, resolvers, kind, config))


@contextlib.contextmanager
def the_town(make_house, resolvers, kind, config):
    networks = [network(kind, "one", 1), network(kind, "two", 2), network(kind, "quiet", 3, names=False)]
    house = make_house({"stop_timeout": 1, "container_networks": networks, **config})
    house.image = house.client.here.images.fetch(resolvers).id
    # Nobody listens there: what no hosts file knows is soon given up.
    dns = DnsRequest(("127.0.0.1",), options=("timeout:1", "attempts:1"))
    request = house.request
    house.request = lambda *words, **options: request(*words, **{"dns": dns, **options})
    yield house
    for uuid in house.uuids():
        house.client.rm(uuid, force=True)
    assert not os.path.exists(f"{house.state}/networks/names.json")
    for name in ("one", "two", "quiet"):
        house.client.network_rm(name)


def addresses(house, reference, network="one"):
    """Of that pod on that network."""
    (found,) = [one for one in house.client.pod(reference).attachments if one.network == network]
    return [one.address.partition("/")[0] for one in found.result.addresses]


def lookup(house, pod, name, resolver="musl"):
    """What that name leads to, inside of that pod."""
    return house.enter(pod, "sh", "-c", LOOKUPS[resolver].format(name=name))[1].split()


@KINDS
def test_pods_find_each_other_as_they_come_and_go(town):
    """By every resolver, in both directions, also from an app that was there first; if they share a network."""
    with town.running(name="first", net=["one"]), town.running(name="alone", net=["two"]):
        assert lookup(town, "first", "second") == []
        with town.running(name="second", hostname="second-host", net=["one", "two"]):
            here = addresses(town, "second")
            for resolver in LOOKUPS:
                found = lookup(town, "first", "second", resolver)
                assert found, resolver
                assert set(found) <= set(here), resolver
                assert lookup(town, "first", "second-host", resolver) == found
                assert lookup(town, "second", "first", resolver)[0] in addresses(town, "first")
            # By both families; glibc takes the first line, unless /etc/host.conf says "multi on".
            assert set(lookup(town, "first", "second", "musl")) == set(here)
            assert {":" in address for address in here} == {True, False}
            # Each is seen at its address on the network that is shared.
            assert set(lookup(town, "alone", "second")) == set(addresses(town, "second", "two"))
            assert lookup(town, "alone", "first") == lookup(town, "first", "alone") == []
            assert set(lookup(town, "second", "alone")) == set(addresses(town, "alone", "two"))
            assert town.enter("first", "ping", "-c", "1", "-W", "2", "second")[0] == 0
        for resolver in LOOKUPS:
            assert lookup(town, "first", "second", resolver) == []
        assert town.enter("first", "grep", "-c", "kurma", "/etc/hosts")[1].strip() == "0"


@pytest.mark.full
@KINDS
def test_a_restart_brings_a_new_address(town):
    with town.running(name="first", net="one"):
        town.launch("sleep 1000", name="moving", net="one")
        before = addresses(town, "moving")
        assert set(lookup(town, "first", "moving")) == set(before)
        town.client.stop("moving", force=True)
        assert lookup(town, "first", "moving") == []
        town.launch(start="moving", wait=None)
        until(lambda: town.client.pod("moving").state == "running")
        after = addresses(town, "moving")
        assert not set(after) & set(before)
        assert set(lookup(town, "first", "moving")) == set(after)
        assert set(lookup(town, "moving", "first")) == set(addresses(town, "first"))
        # What went before it is in nobody's file.
        assert before[0] not in town.enter("first", "cat", "/etc/hosts")[1]


@pytest.mark.full
def test_the_name_of_a_dead_pod_goes_with_its_teardown(town):
    with town.running(name="first", net="one"):
        run = town.launch("sleep 1000", name="dead", net="one")
        assert lookup(town, "first", "dead")
        stager = town.client.pod("dead").stager_pid
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        # As long as it runs without its owner, it is found, and finds who comes.
        with town.running(name="later", net="one"):
            assert set(lookup(town, "dead", "later")) == set(addresses(town, "later"))
            assert lookup(town, "later", "dead")
        assert "later" not in town.enter("dead", "cat", "/etc/hosts")[1]
        os.kill(stager, signal.SIGKILL)
        until(lambda: town.client.pod("dead").state == "errored")
        assert lookup(town, "first", "dead") == []
        broken = town.launch("sleep 1000", name="broken", net="one")
        assert lookup(town, "first", "broken")
        os.kill(broken.process.pid, signal.SIGKILL)
        broken.process.wait()
        with open(town.path(broken, "pod.json"), "w") as file:
            file.write("nonsense")
        town.client.rm(broken.uuid, force=True)
        assert lookup(town, "first", "broken") == []


@pytest.mark.full
def test_a_pod_whose_directory_is_gone_is_found_until_it_is_collected(town):
    with town.running(name="first", net="one"):
        run = town.launch("sleep 1000", name="lost", net="one")
        stager = town.client.pod("lost").stager_pid
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        os.kill(stager, signal.SIGKILL)
        until(lambda: not alive(stager))
        shutil.rmtree(town.path(run))
        tree = CgroupTree(f"kurma/{run.uuid}")
        tree.kill()
        tree.remove()
        assert lookup(town, "first", "lost")
        town.client.gc(grace=0)
        assert lookup(town, "first", "lost") == []


def test_names_can_be_turned_off(town):
    with town.running(name="first", net="quiet"), town.running(name="second", net="quiet"):
        assert lookup(town, "first", "second") == []
        assert town.enter("first", "sh", "-c", "grep -c /etc/hosts /proc/mounts")[1].strip() == "0"


def test_what_an_app_and_an_image_have_there_stays(town, make_house, tmp_path):
    """An image's own lines stand first, then the pod's own name; what an app adds is its own, and all see pods
    come and go. Where the user says something of hosts, the image's lines are gone (H10)."""
    own = town.client.here.images.fetch(
        resolver_archive(str(tmp_path), {"etc/hosts": "192.0.2.9 own\n192.0.2.8 old # kurma"})
    )
    apps = {
        "a": {"app": sleeping()},
        "b": {"app": sleeping(), "image": own.id},
        "c": {"app": sleeping(), "readOnlyRootFS": True},
    }
    said = {"hosts": (("192.0.2.7", ("mine",)),)}
    with (
        town.running(apps, name="first", net="one"),
        town.running({"b": apps["b"]}, name="said", net="one", **said),
    ):
        for app in "ab":
            assert town.enter("first", "sh", "-c", "echo 192.0.2.1 added >> /etc/hosts", app=app)[0] == 0
        assert "Read-only" in town.enter("first", "sh", "-c", "echo >> /etc/hosts", app="c")[2]
        with town.running(name="mine", net="one"), town.running(name="second", net="one"):
            files = {app: town.enter("first", "cat", "/etc/hosts", app=app)[1].splitlines() for app in "abc"}

            def lines(name, end="\t# kurma"):
                return [f"{address}\t{name}{end}" for address in addresses(town, name)]

            others = [*lines("said"), *lines("mine"), *lines("second")]
            own_name = lines("first", end="")
            assert files["b"] == ["192.0.2.9 own", *own_name, "192.0.2.1 added", *others]
            assert files["a"][-len(others) - 1 :] == ["192.0.2.1 added", *others]
            assert files["c"] == [line for line in files["a"] if "added" not in line]
            # What the user said of a name is stronger than a pod of that name.
            replaced = town.enter("said", "cat", "/etc/hosts")[1].splitlines()
            assert replaced[2:] == [
                *lines("said", end=""),
                "192.0.2.7\tmine",
                *lines("first"),
                *lines("second"),
            ]
            mount = town.enter("first", "grep", "/etc/hosts", "/proc/self/mounts", app="a")[1]
            assert {"nosuid", "nodev", "noexec"} <= set(mount.split()[3].split(","))
        assert "second" not in town.enter("first", "cat", "/etc/hosts", app="b")[1]
        code, text, _ = town.enter("first", "sed", "/# kurma$/d", "/etc/hosts", app="b")
        assert (code, text.splitlines()[-1]) == (0, "192.0.2.1 added")
    town.client.here.images.remove(own.id)


def sleeping():
    return {"exec": ["/bin/sleep", "1000"], "user": "0", "group": "0"}


@pytest.mark.parametrize("storage", ["overlay", "copy"])
def test_names_in_a_user_namespace(make_town, storage):
    town = make_town(plugins={"stagers": {"default": {"config": {"graphStorage": storage}}}})
    with (
        town.running(name="first", net="one", userns="auto"),
        town.running(name="second", net="one"),
    ):
        assert set(lookup(town, "first", "second")) == set(addresses(town, "second"))
        assert town.enter("first", "stat", "-c", "%u:%g %a", "/etc/hosts")[1] == "0:0 644\n"
        assert town.enter("first", "sh", "-c", "echo 192.0.2.1 added >> /etc/hosts")[0] == 0
        assert lookup(town, "first", "added") == ["192.0.2.1"]


def test_an_app_that_comes_later(town):
    """It knows who is there, and those who come; its file goes with it."""
    with (
        town.running(
            {},
            name="first",
            net="one",
        ) as pod,
        town.running(name="second", net="one"),
    ):
        place = f"{town.path(pod, 'pod/hosts')}/late"
        town.client.app_add("first", town.request({"late": "sleep 1000"}))
        town.client.app_start("first", "late")
        assert set(lookup(town, "first", "second")) == set(addresses(town, "second"))
        with town.running(name="third", net="one"):
            assert lookup(town, "first", "third")
        assert os.path.exists(place)
        town.client.app_stop("first", "late")
        town.client.app_rm("first", "late")
        assert not os.path.exists(place)


def test_other_names_go_where_they_went_before(town):
    """A name server outside is asked for what no pod is called, and for nothing else."""
    names = {"outside.example": "192.0.2.77", "second": "192.0.2.78", "short.in.example": "192.0.2.79"}
    dns = DnsRequest((SERVER[0],), ("in.example",), ("timeout:2",))
    with (
        world_around() as world,
        NameServer(world.server, SERVER[0], names) as server,
        town.running(name="first", net="one", dns=dns),
        town.running(name="second", net="one"),
    ):
        for resolver in LOOKUPS:
            assert set(lookup(town, "first", "second", resolver)) <= set(addresses(town, "second"))
            assert "second" not in server.asked, resolver
            assert lookup(town, "first", "outside.example", resolver) == ["192.0.2.77"], resolver
            assert lookup(town, "first", "short", resolver) == ["192.0.2.79"], resolver
            assert server.asked
            assert {*server.asked} <= {"outside.example", "short", "short.in.example"}
            server.asked.clear()


@pytest.mark.full
def test_the_servers_behind_the_stub_of_the_host(town, tmp_path):
    """systemd-resolved's stub is the host's alone: pods ask whom it asks."""
    (tmp_path / "stub").write_text("nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n")
    behind = Path("/run/systemd/resolve/resolv.conf")
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(world_around())
        server = stack.enter_context(NameServer(world.server, SERVER[0], {"outside.example": "192.0.2.77"}))
        subprocess.run(["mount", "--bind", tmp_path / "stub", "/etc/resolv.conf"], check=True)
        stack.callback(subprocess.run, ["umount", "/etc/resolv.conf"], check=True)
        before = behind.read_text() if behind.exists() else None
        behind.parent.mkdir(parents=True, exist_ok=True)
        behind.write_text(f"nameserver {SERVER[0]}\n")
        stack.callback(behind.unlink if before is None else lambda: behind.write_text(before))
        with town.running(name="first", net="one", dns=None):
            assert town.enter("first", "cat", "/etc/resolv.conf")[1] == f"nameserver {SERVER[0]}\n"
            for resolver in LOOKUPS:
                assert lookup(town, "first", "outside.example", resolver) == ["192.0.2.77"], resolver
        assert server.asked
        # A cloud's has an address of a link, by its number alone.
        cloud = "169.254.169.254"
        world.neighbour.ip("address", "add", f"{cloud}/32", "dev", "eth0")
        world.host.ip("route", "add", cloud, "via", NEIGHBOUR[0])
        (tmp_path / "stub").write_text(f"nameserver {cloud}\n")
        with (
            NameServer(world.neighbour, cloud, {"outside.example": "192.0.2.76"}),
            town.running(name="clouded", net="one", dns=None),
        ):
            assert lookup(town, "clouded", "outside.example") == ["192.0.2.76"]
        (tmp_path / "stub").write_text("nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n")
        # Where nothing is known behind it, the user is told.
        behind.unlink()
        behind.touch()
        with town.running(name="second", net="one", dns=None):
            assert town.enter("second", "cat", "/etc/resolv.conf")[1] == "options edns0\n"
        assert [note for note in town.notes if "the pod has no name server" in note]


@pytest.mark.full
def test_many_pods_at_once(town):
    """They come and go side by side, and every one knows all others in the end."""
    runs = [town.launch("sleep 1000", name=f"p{n}", net="one", wait=None) for n in range(6)]
    for run in runs:
        run.wait_state("running")
    for n in range(6):
        text = town.enter(f"p{n}", "cat", "/etc/hosts")[1]
        for other in range(6):
            assert (f"\tp{other}\t# kurma" in text) == (other != n)
    gone, *left = [f"p{n}" for n in range(6)]
    for run in runs[1:]:
        os.kill(run.process.pid, signal.SIGTERM)
    for run in runs[1:]:
        run.process.wait()
    assert lookup(town, gone, left[0]) == []
    assert "# kurma" not in town.enter(gone, "cat", "/etc/hosts")[1]
