"""The hosts files of pods: their own lines, other pods', and what apps write there (W10, H10)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.models.network import AddressResult, Attachment, NetworkRequest, NetworkResult
from kurma_core.pods.network import hosts_and_resolv_conf
from kurma_core.value import replace
from tests.pods.documents import pod_document

LO = Attachment("lo", "lo", "lo", {}, NetworkRequest("lo"), base=True)
ETH = Attachment(
    "net", "cni", "eth0", {}, NetworkRequest("net"), result=NetworkResult((AddressResult("10.1.2.3/16"),))
)
QUIET = replace(ETH, names=False)
DOCUMENT = pod_document(attachments=(LO, ETH), hosts=(("10.9.9.9", ("db",)),))


def test_the_pods_own_name_is_at_its_addresses() -> None:
    lines = hosts_and_resolv_conf.pod_hosts(DOCUMENT, (LO, ETH))
    assert lines[:2] == (("127.0.0.1", ("localhost",)), ("::1", ("localhost", "ip6-localhost", "ip6-loopback")))
    assert lines[2:] == (("10.1.2.3", ("here",)), ("10.9.9.9", ("db",)))
    assert hosts_and_resolv_conf.pod_hosts(DOCUMENT, (LO,))[2:] == (
        ("127.0.0.1", ("here",)),
        ("10.9.9.9", ("db",)),
    )


def test_a_name_with_a_domain_is_known_without_it_too() -> None:
    def own(name: str) -> tuple[str, ...]:
        return hosts_and_resolv_conf.pod_hosts(replace(DOCUMENT, hostname=name, hosts=()), (LO, ETH))[2][1]

    assert own("a.b.c") == ("a.b.c", "a")
    # What no resolver would take for a name, or would take for itself.
    assert own("7.b.c") == ("7.b.c",)
    assert own("localhost.b.c") == ("localhost.b.c",)


def test_localhost_is_nobody_elses() -> None:
    lines = hosts_and_resolv_conf.pod_hosts(replace(DOCUMENT, hostname="localhost", hosts=()), (LO, ETH))
    assert [address for address, names in lines if "localhost" in names] == ["127.0.0.1", "::1"]


def test_files_that_take_the_place_of_an_images() -> None:
    """H10: all, if it is from a registry; else those that the user or a network says something of."""
    document = pod_document(attachments=(LO, ETH))
    says = replace(ETH, result=replace(ETH.result or NetworkResult(()), search=("example.com",)))
    assert hosts_and_resolv_conf.replaced_files(document, True, (LO, ETH)) == ("hosts", "hostname", "resolv.conf")
    assert hosts_and_resolv_conf.replaced_files(document, False, (LO, ETH)) == ()
    assert hosts_and_resolv_conf.replaced_files(DOCUMENT, False, (LO, ETH)) == ("hosts",)
    assert hosts_and_resolv_conf.replaced_files(document, False, (LO, says)) == ("resolv.conf",)
    for dns, found in (({"options": ("ndots:2",)}, ("resolv.conf",)), ({"options": (), "search": ()}, ())):
        assert (
            hosts_and_resolv_conf.replaced_files(
                replace(document, dns=dns), False, (LO, replace(ETH, result=None))
            )
            == found
        )


def test_networks_on_which_a_pod_is_found() -> None:
    image = replace(ETH, interface="")  # of a network that is an image and names no interface
    assert hosts_and_resolv_conf.findable((LO, ETH, QUIET, image)) == (ETH, image)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("web", True), ("web-1", True), ("Web.example.com", True), ("1", False), ("10.0.0.1", False), ("a1", True),
        ("1a", True), ("localhost", False), ("LocalHost", False), ("a.localhost", False),
        ("a.localdomain", False),
        ("ip6-loopback", False), ("a_b", False), ("a~b", False), ("a/b", False), ("-a", False), ("a-", False),
        ("", False), ("a..b", False), (".", False), ("a.", False), ("a" * 63, True), ("a" * 64, False),
        (".".join(["a" * 62] * 4), True), (".".join(["a" * 63] * 4), False), ("ä", False), ("a b", False),
        ("a#", False),
    ],
)  # fmt: skip
def test_names_that_all_resolvers_look_up(name: str, is_one: bool) -> None:
    assert hosts_and_resolv_conf.is_host_name(name) is is_one


NAMES = st.lists(st.sampled_from([b"10.0.0.1\ta\t# kurma\n", b"10.0.0.2\tb\t# kurma\n", b"::3\tc d\t# kurma\n"]))
CONTENT = st.lists(st.sampled_from([b"1.2.3.4 x", b"", b"\r", b"\n", b" # kurma", b"# kurmas", b"\xff", b"y"]))


@given(CONTENT.map(b"\n".join), NAMES.map(b"".join), NAMES.map(b"".join))
def test_lines_of_kurmas_are_replaced_and_no_others(content: bytes, before: bytes, names: bytes) -> None:
    old = hosts_and_resolv_conf.with_names(content, before)
    new = hosts_and_resolv_conf.with_names(old, names, before)
    assert new == hosts_and_resolv_conf.with_names(old, names)  # however it is come by
    assert hosts_and_resolv_conf.with_names(new, names, names) == new
    ours = [line for line in new.splitlines() if line.endswith(b"# kurma")]
    assert ours == names.splitlines()
    kept = [line for line in content.splitlines() if not line.rstrip().endswith(b"# kurma")]
    assert [line for line in new.splitlines() if line not in ours] == kept


A, B, C = b"10.0.0.1\ta\t# kurma\n", b"10.0.0.2\tb\t# kurma\n", b"10.0.0.3\tc\t# kurma\n"
OWN = b"127.0.0.1 localhost\n"


@pytest.fixture
def place(tmp_path: Path) -> Any:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(("old", "new"), [(A, A + B), (A + B + C, A + C), (A, b""), (b"", A), (A, B), (A + B, C)])
def test_a_file_is_changed_in_place(tmp_path: Path, place: int, old: bytes, new: bytes) -> None:
    """Whoever has it bound, or open, sees what comes."""
    file = tmp_path / "hosts"
    file.write_bytes(OWN + old)
    with file.open("rb") as bound:
        assert hosts_and_resolv_conf.update(place, "hosts", new, old) == OWN + old
        assert bound.read() == OWN + new


def test_a_death_in_between_leaves_whole_lines(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(OWN + A + B + C)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", dies)
        with pytest.raises(KeyboardInterrupt):
            hosts_and_resolv_conf.update(place, "hosts", A + C, A + B + C)
    assert file.read_bytes().rstrip(b"\n") + b"\n" == OWN + A + C
    hosts_and_resolv_conf.update(place, "hosts", A + C, A + C)
    lines = file.read_bytes().splitlines()
    assert [line for line in lines if line] == (OWN + A + C).splitlines()


def test_what_is_no_hosts_file_is_passed_over(tmp_path: Path, place: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert hosts_and_resolv_conf.update(place, "fifo", A, b"") == b""
    (tmp_path / "target").write_bytes(OWN)
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links"):
        hosts_and_resolv_conf.update(place, "link", A, b"")
    assert (tmp_path / "target").read_bytes() == OWN
    huge = b"#" * (hosts_and_resolv_conf.LIMIT + 1)
    (tmp_path / "huge").write_bytes(huge)
    hosts_and_resolv_conf.update(place, "huge", A, b"")
    assert (tmp_path / "huge").read_bytes() == huge
