"""Which pod has which address: distinct, never one that is nobody's to have, again as late as can be."""

import multiprocessing
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_net_bridge.addresses import Addresses
from kurma_net_bridge.subnets import Subnet, parse_cidr

from kurma_core.errors import NetworkError


def subnet(text):
    return Subnet(*parse_cidr(text))


SMALL = subnet("10.9.0.0/28")
SIX = subnet("fd00:9::/64")


def take(addresses, owner, *wanted, subnets=(SMALL,)):
    return [one.text(address) for one, address in addresses.take(subnets, owner, wanted)]


@pytest.fixture
def addresses(tmp_path):
    return Addresses(str(tmp_path / "addresses"), "net")


@given(
    st.sampled_from(["10.9.0.0/28", "10.9.0.8/29", "192.168.1.0/30", "fd00:9::/124", "fd00:9::8/125"]),
    st.lists(st.tuples(st.sampled_from(["take", "free"]), st.integers(0, 20)), max_size=60),
)
def test_against_a_model(text, steps):
    """Whatever is taken and given back: an owner's alone, fit for a pod, and none is refused while one is free."""
    one, network = subnet(text), ip_network(text)
    fit = set(network) - {network[0], network[1], *([network[-1]] if network.version == 4 else [])}
    held = {}
    with tempfile.TemporaryDirectory() as directory:
        addresses = Addresses(directory, "net")
        for step, number in steps:
            owner = f"pod{number}:eth0"
            if step == "free":
                addresses.free(owner)
                held.pop(owner, None)
            elif owner not in held:
                if len(held) == len(fit):
                    with pytest.raises(NetworkError, match="no address of"):
                        take(addresses, owner, subnets=[one])
                    continue
                (given_one,) = take(addresses, owner, subnets=[one])
                assert ip_address(given_one) in fit - set(held.values())
                held[owner] = ip_address(given_one)
        there = {owner: one.text(number) for (_, number), owner in addresses.taken().items()}
        assert {owner: ip_address(text) for owner, text in there.items()} == held


def test_what_is_given_back_comes_again_last(addresses):
    first = take(addresses, "a:eth0")
    addresses.free("a:eth0")
    others = [take(addresses, f"p{n}:eth0") for n in range(12)]
    assert first not in others
    assert take(addresses, "b:eth0") == first


def test_both_families(addresses):
    assert take(addresses, "a:eth0", subnets=(SMALL, SIX)) == ["10.9.0.2", "fd00:9::2"]
    assert take(addresses, "b:eth0", subnets=(SIX, SMALL)) == ["fd00:9::3", "10.9.0.3"]
    assert addresses.of("a:eth0") == [(4, int(ip_address("10.9.0.2"))), (6, int(ip_address("fd00:9::2")))]
    addresses.free("a:eth0")
    assert addresses.of("a:eth0") == []


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("10.9.0.0", "an address of 10.9.0.0/28 that no pod may have"),
        ("10.9.0.1", "the bridge's own"),
        ("10.9.0.15", "no pod may have"),
        ("10.9.0.16", "it is not in 10.9.0.0/28"),
        ("fd00::1", "it is not in 10.9.0.0/28"),
        ("10.9.0.5/24", "the subnet is 10.9.0.0/28"),
        ("nonsense", "it is not in 10.9.0.0/28"),
    ],
)
def test_what_cannot_be_asked_for(addresses, wanted, why):
    with pytest.raises(NetworkError, match=why) as caught:
        take(addresses, "a:eth0", wanted)
    assert wanted in caught.value.message
    assert addresses.taken() == {}


def test_two_of_one_subnet_cannot_be_asked_for(addresses):
    with pytest.raises(NetworkError, match="two are requested"):
        take(addresses, "a:eth0", "10.9.0.5", "10.9.0.6")


def test_one_that_is_asked_for(addresses):
    assert take(addresses, "a:eth0", "10.9.0.9/28") == ["10.9.0.9"]
    assert take(addresses, "a:eth0", "10.9.0.9") == ["10.9.0.9"]  # its own
    with pytest.raises(NetworkError, match=r"10\.9\.0\.9 is in use by pod a"):
        take(addresses, "b:eth0", "10.9.0.9")
    assert take(addresses, "b:eth0") == ["10.9.0.2"]  # what is asked for moves nothing for others
    assert take(addresses, "c:eth0", "fd00:9::77", subnets=(SMALL, SIX)) == ["10.9.0.3", "fd00:9::77"]


def test_what_somebody_else_keeps_there(addresses, tmp_path):
    """Names that are no addresses are not heeded, and an address that is not kept as ours is not given away."""
    directory = tmp_path / "addresses"
    directory.mkdir()
    (directory / "README").write_text("hands off")
    (directory / "10.9.0.2").write_text("a printer")
    (directory / "10.9.0.3").mkdir()
    (directory / "10.9.0.4").symlink_to("/etc/passwd")
    (directory / "10.9.0.999").symlink_to("pod:eth0")
    (directory / "last.4").symlink_to("fd00::")
    assert take(addresses, "a:eth0") == ["10.9.0.5"]
    with pytest.raises(NetworkError, match=r"10\.9\.0\.2 is in use by somebody else"):
        take(addresses, "b:eth0", "10.9.0.2")
    addresses.free("a:eth0")
    assert sorted(os.listdir(directory)) == [
        "10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.999", "README", "last.4", "lock"
    ]  # fmt: skip


@pytest.mark.parametrize("last", ["10.9.0.1", "10.9.0.15", "10.200.0.7", "0.0.0.0", "garbage", "/"])
def test_a_record_of_the_last_one_that_is_wrong(addresses, tmp_path, last):
    (tmp_path / "addresses").mkdir()
    (tmp_path / "addresses" / "last.4").symlink_to(last)
    assert take(addresses, "a:eth0") == ["10.9.0.2"]


def test_a_writer_that_was_killed_over_it(addresses, tmp_path):
    (tmp_path / "addresses").mkdir()
    (tmp_path / "addresses" / "last.4.new").symlink_to("10.9.0.7")
    take(addresses, "a:eth0")
    assert take(addresses, "b:eth0") == ["10.9.0.3"]


def test_a_disk_that_takes_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NetworkError, match=r"cannot write .*file"):
        take(Addresses(str(tmp_path / "file" / "addresses"), "net"), "a:eth0")


def _take_many(directory, name):
    addresses = Addresses(directory, "net")
    return [take(addresses, f"{name}-{n}:eth0", subnets=(subnet("10.9.0.0/24"),)) for n in range(25)]


def test_many_processes_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(4) as threads:
        with context.Pool(2) as pool:
            apart = pool.starmap_async(_take_many, [(str(tmp_path), "a"), (str(tmp_path), "b")])
            here = [threads.submit(_take_many, str(tmp_path), f"t{n}") for n in range(4)]
            found = [*apart.get(60), *(one.result() for one in here)]
    every = [address for part in found for (address,) in part]
    assert len(every) == len(set(every)) == 150


def test_the_only_free_one_lies_before_the_last_given(addresses):
    given_first = [take(addresses, f"pod{n}:eth0")[0] for n in range(13)]
    for n in (0, 1):
        addresses.free(f"pod{n}:eth0")
    assert [take(addresses, f"new{n}:eth0") for n in (0, 1)] == [[one] for one in given_first[:2]]
    addresses.free("new0:eth0")
    assert take(addresses, "late:eth0") == given_first[:1]
