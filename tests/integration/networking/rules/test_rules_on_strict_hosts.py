"""Hosts whose own rules forward nothing: pods reach and are reached all the same, or the user is told why not."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kurma_net_bridge.packet_filter import nftables

from kurma_core.models.network import PortMapping
from kurma_core.value import replace

from .conftest import iptables, only

pytestmark = pytest.mark.root

PORT = 8080


def serve(world):
    world.do("ensure", world.one)
    world.do("ensure", world.two)
    world.do("publish", world.one, "pod-a", (world.a.four, world.a.six), (PortMapping(PORT, 80),))


def works(world):
    for address, outside in (("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")):
        assert world.outside.ask(address, PORT)[0] == world.a.name
        assert world.c.ask(address, PORT)[0] == world.a.name
        assert world.host.ask(address, PORT)[0] == world.a.name
        assert world.c.ask(outside, 80) == (world.outside.name, address, 10)
    for address in (world.c.four, world.c.six):
        assert world.a.ask(address, 80, timeout=0.3) is None


@pytest.mark.full
@pytest.mark.parametrize("flavour", ["nft", "legacy"])
def test_forward_of_iptables_drops(make_world, monkeypatch, tmp_path, flavour):
    world = make_world()
    for program in (f"iptables-{flavour}", f"ip6tables-{flavour}"):
        world.host.run(program, "-P", "FORWARD", "DROP")
        world.host.run(program, "-A", "FORWARD", "-j", "DROP")
    only(monkeypatch, tmp_path, "nft", *iptables(flavour))
    before = [world.host.run(f"{program}-{flavour}", "-S") for program in ("iptables", "ip6tables")]
    serve(world)
    works(world)
    assert not world.do("ensure", world.one)
    for network in (world.one, world.two):
        world.do("remove", network)
    assert [world.host.run(f"{program}-{flavour}", "-S") for program in ("iptables", "ip6tables")] == before
    assert world.do("found") == []


@pytest.mark.parametrize("step", range(3))
def test_what_was_killed_on_the_way_is_done_again(make_world, monkeypatch, tmp_path, step):
    """A batch of nft, or of iptables for one family, is done or not; one comes after the other."""
    world = make_world()
    only(monkeypatch, tmp_path, "nft", *iptables("nft"))
    for program in ("iptables-nft", "ip6tables-nft"):
        world.host.run(program, "-P", "FORWARD", "DROP")
    real = nftables.run

    class Killed(BaseException):
        pass

    def halved(call, *arguments):
        left = step

        def cut(command, *, stdin, **more):
            nonlocal left
            if stdin:
                if left == 0:
                    raise Killed
                left -= 1
            return real(command, stdin=stdin, **more)

        with monkeypatch.context() as patch:
            patch.setattr(nftables, "run", cut)
            with suppress(Killed):
                world.do(call, *arguments)

    halved("ensure", world.one)
    world.do("ensure", world.one)
    ports = (world.one, "pod-a", (world.a.four, world.a.six), (PortMapping(PORT, 80),))
    halved("publish", *ports)
    world.do("publish", *ports)
    world.do("ensure", world.two)
    works(world)
    halved("remove", world.one)
    world.do("remove", world.one)
    world.do("remove", world.two)
    assert world.do("found") == []


def test_rules_of_others_in_forward_stay(make_world, monkeypatch, tmp_path):
    """Also where their comment looks like ours; and rules of a bridge that has got another name go."""
    world = make_world()
    only(monkeypatch, tmp_path, "nft", *iptables("nft"))
    world.host.run(
        "iptables-nft", "-A", "FORWARD", "-m", "comment", "--comment", "kurma,1f2e3d4c,kbr1", "-j", "DROP"
    )
    before = world.host.run("iptables-nft", "-S", "FORWARD")
    world.do("ensure", replace(world.one, bridge="kbr2"))
    world.do("ensure", world.one)
    rules = world.host.run("iptables-nft", "-S", "FORWARD").splitlines()
    assert [line for line in rules if "kbr2" in line] == []
    assert [line.split()[2:4] for line in rules if "ACCEPT" in line and "-P" not in line] == [
        ["-o", "kbr1"],
        ["-i", "kbr1"],
    ]
    world.do("remove", world.one)
    assert world.host.run("iptables-nft", "-S", "FORWARD") == before


def test_both_kinds_of_iptables_drop(make_world, monkeypatch, tmp_path):
    """As where an update has changed which one ``iptables`` is, and nobody has cleared the other."""
    world = make_world()
    for program in ("iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"):
        world.host.run(program, "-P", "FORWARD", "DROP")
    legacy = [f"{name}-legacy-{verb}" for name in ("iptables", "ip6tables") for verb in ("save", "restore")]
    only(monkeypatch, tmp_path, "nft", *iptables("nft"), *legacy)
    serve(world)
    works(world)
    for network in (world.one, world.two):
        world.do("remove", network)
    assert world.do("found") == []


def test_somebodys_own_chain_of_nftables_drops(make_world, monkeypatch, tmp_path):
    world = make_world()
    only(monkeypatch, tmp_path, "nft")
    world.host.run("nft", "add table inet guard")
    world.host.run("nft", "add chain inet guard gate { type filter hook forward priority 10; policy drop; }")
    serve(world)
    assert world.outside.ask("192.0.2.1", PORT, timeout=0.3) is None
    assert len(world.notes) == 2
    assert all("the chain gate of the nftables table inet guard drops" in note for note in world.notes)
    for note in world.notes:
        for command in note.partition("; add: ")[2].split("; "):
            world.host.run(*command.split())
    works(world)
    world.notes.clear()
    world.do("ensure", world.one)
    assert world.notes == []
