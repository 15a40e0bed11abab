"""resolv.conf of a pod: which source says what, and what of the host's is of use (W10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.models.isolator import IsolatorPlan
from kurma_core.models.network import AddressResult, Attachment, NetworkRequest, NetworkResult
from kurma_core.pods.network.hosts_and_resolv_conf import parse_resolv_conf, pod_dns, replaced_files
from kurma_core.pods.record.document import PodDocument
from kurma_core.value import replace
from tests.pods.documents import pod_document

LO = Attachment("lo", "lo", "lo", {}, NetworkRequest("lo"), base=True)
ETH = Attachment(
    "net", "cni", "eth0", {}, NetworkRequest("net"), result=NetworkResult((AddressResult("10.1.2.3/16"),))
)
BOTH = replace(ETH, result=NetworkResult((AddressResult("10.1.2.3/16"), AddressResult("fd00::3/64"))))
LINK = replace(ETH, result=NetworkResult((AddressResult("10.1.2.3/16"), AddressResult("fe80::3/64"))))
LINK_V4 = replace(ETH, result=NetworkResult((AddressResult("169.254.3.4/16"), AddressResult("fd00::3/64"))))
SIX = replace(ETH, result=NetworkResult((AddressResult("fd00::3/64"),)))
DOCUMENT = pod_document(attachments=(LO, ETH))
HOST = "nameserver 9.9.9.9\nsearch corp.example\noptions ndots:2 trust-ad\n"


class Asked:
    """What a pod's resolv.conf says, and what its user was told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []

    def __call__(
        self,
        host: str,
        *joined: Attachment,
        said: tuple[Any, ...] | None = None,
        resolved: str | None = None,
        host_network: bool = False,
    ) -> tuple[Any, ...]:
        self.notes.clear()
        (self._path / "host").write_text(host)
        if resolved is not None:
            (self._path / "resolved").write_text(resolved)
        keys = ("nameservers", "search", "options")
        dns = None if said is None else dict(zip(keys, said, strict=True))
        document = replace(DOCUMENT, dns=dns, host_network=host_network)
        found = pod_dns(document, joined, self.notes.append, f"{self._path}/host", f"{self._path}/resolved")
        return tuple(found[key] for key in keys)


@pytest.fixture
def ask(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def named(*servers: str, search: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> Attachment:
    """A network whose result has DNS."""
    assert ETH.result is not None
    return replace(ETH, result=replace(ETH.result, nameservers=servers, search=search, options=options))


@pytest.mark.parametrize(
    ("text", "servers", "search", "options"),
    [
        ("# c\nnameserver 1.1.1.1 ; x\nsearch a b\noptions b\nnameserver\ndomain c\n", "1.1.1.1", "c", "b"),
        ("\tnameserver\t1.1.1.1\r\nnameserver 2.2.2.2", "1.1.1.1 2.2.2.2", "", ""),
        ("options a\noptions b c\nsearch x\nsearch y z", "", "y z", "a b c"),
        ("nonsense\n;nameserver 1.1.1.1\n#search a\nsortlist 1.2.3.4\nNAMESERVER a\nnameserver1", "", "", ""),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_resolv_conf_is_read_as_resolvers_do(text: str, servers: str, search: str, options: str) -> None:
    words = (servers, search, options)
    expected = dict(
        zip(("nameservers", "search", "options"), [tuple(word.split()) for word in words], strict=True)
    )
    assert parse_resolv_conf(text) == expected


WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789.:-_", min_size=1, max_size=20)


@given(st.lists(WORD), st.lists(WORD, max_size=9), st.lists(WORD), st.lists(st.text("ab #;\t", max_size=9)))
def test_what_is_written_is_read(
    servers: list[str], search: list[str], options: list[str], odd: list[str]
) -> None:
    """Odd lines between, of which none is one of resolv.conf's, change nothing."""
    from kurma_stager_default.inside.app.etc_hosts import contents
    from kurma_stager_default.inside.manifest import Pod

    dns = {"nameservers": servers, "search": search, "options": options}
    document = {"pod": {}, "stagerConfig": {"kurma.io": {"dns": dns}}}
    text = contents(Pod(document, {}))["/etc/resolv.conf"]
    lines = [line for pair in zip(text.splitlines(), [*odd, *[""] * 999], strict=False) for line in pair]
    assert parse_resolv_conf("\n".join(lines)) == {key: tuple(words) for key, words in dns.items()}


def test_strength(ask: Asked) -> None:
    """The networks' results, then what the user said, then the host's, then none."""
    said = (("8.8.8.8",), ("said",), ("ndots:3",))
    result = named("10.0.0.1", search=("net",), options=("ndots:1",))
    assert ask(HOST, LO, result, said=said) == (("10.0.0.1",), ("net",), ("ndots:1",))
    assert ask.notes == ["--dns is not used: the name servers are those that network net names"]
    assert ask(HOST, LO, ETH, said=said) == said
    assert ask(HOST, LO, ETH) == (("9.9.9.9",), ("corp.example",), ("ndots:2", "trust-ad"))
    assert ask("", LO, ETH) == ((), (), ())
    assert ask.notes == []


def test_each_part_has_its_own_source(ask: Asked) -> None:
    """A search domain alone leaves the servers as they were; and ``trust-ad`` is of the host's servers."""
    assert ask(HOST, ETH, said=((), ("said",), ())) == (("9.9.9.9",), ("said",), ("ndots:2", "trust-ad"))
    assert ask(HOST, ETH, said=(("8.8.8.8",), (), ())) == (("8.8.8.8",), ("corp.example",), ("ndots:2",))
    assert ask(HOST, ETH, said=((), (), ("rotate",))) == (("9.9.9.9",), ("corp.example",), ("rotate",))
    assert ask(HOST, ETH, said=((), (".",), ())) == (("9.9.9.9",), (), ("ndots:2", "trust-ad"))
    assert ask(HOST, named("10.0.0.1"), said=((), ("said",), ())) == (("10.0.0.1",), ("said",), ("ndots:2",))
    assert ask.notes == []


def test_several_networks_name_servers(ask: Asked) -> None:
    one, two = named("10.0.0.1", search=("a", "b")), named("10.0.0.2", "10.0.0.1", search=("b", "c"))
    assert ask(HOST, one, two)[:2] == (("10.0.0.1", "10.0.0.2"), ("a", "b", "c"))


@pytest.mark.parametrize("stub", ["127.0.0.53", "127.0.0.54"])
def test_a_resolved_host(ask: Asked, stub: str) -> None:
    """Its stub answers the host alone; the servers behind it answer pods, too."""
    host = f"nameserver {stub}\noptions edns0 trust-ad\nsearch ."
    behind = "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch lan.example\n"
    assert ask(host, ETH, resolved=behind) == (("192.0.2.1", "192.0.2.2"), ("lan.example",), ())
    assert ask.notes == []


def test_another_resolver_of_the_hosts_own_cannot_be_reached(ask: Asked) -> None:
    """A resolved that runs beside it says nothing of what that one does."""
    said = "the pod has no name server: the host's (127.0.0.1) cannot be reached from its network; --dns names "
    assert ask("nameserver 127.0.0.1\n", ETH, resolved="nameserver 192.0.2.1")[0] == ()
    assert ask.notes == [said + "another one"]
    assert ask("nameserver 127.0.0.53\n", ETH, resolved="nameserver ::1\n")[0] == ()
    assert len(ask.notes) == 1
    assert ask("nameserver 127.0.0.1\nnameserver 9.9.9.9\n", ETH)[0] == ("9.9.9.9",)
    assert ask.notes == []
    assert ask("nameserver 127.0.0.1\n", ETH, said=(("8.8.8.8",), (), ()))[0] == ("8.8.8.8",)
    assert ask.notes == []


@pytest.mark.parametrize("own", ["0.0.0.0", "127.3.2.1", "::1", "::", "::ffff:127.0.0.1", "FE80::1", "febf::1"])
def test_addresses_that_are_the_hosts_alone(ask: Asked, own: str) -> None:
    assert ask(f"nameserver {own}\nnameserver 9.9.9.9\n", BOTH)[0] == ("9.9.9.9",)
    assert ask(f"nameserver {own}\n", BOTH)[0] == ()
    assert len(ask.notes) == 1


def test_a_clouds_server_is_reached_by_the_host(ask: Asked) -> None:
    """Its address is of a link, by its number; the host leads to it as to any other."""
    assert ask("nameserver 169.254.169.254\n", ETH)[0] == ("169.254.169.254",)
    assert ask.notes == []


def test_a_stub_beside_another_server(ask: Asked) -> None:
    """The host asks that one as well, and it can be reached: nothing else is looked for."""
    host = "nameserver 127.0.0.53\nnameserver 9.9.9.9\nsearch corp.example\n"
    assert ask(host, ETH, resolved="nameserver 192.0.2.1\n")[:2] == (("9.9.9.9",), ("corp.example",))


MANY = "nameserver fe80::1%eth0\nnameserver 2001:db8::1\nnameserver 9.9.9.9\nnameserver ::1\nnameserver fe80::2\n"


@pytest.mark.parametrize(
    ("joined", "servers"),
    [
        (ETH, ("9.9.9.9",)),
        (BOTH, ("2001:db8::1", "9.9.9.9")),
        (LINK, ("9.9.9.9",)),
        (SIX, ("2001:db8::1",)),
        (LINK_V4, ("2001:db8::1",)),
    ],
)
def test_servers_of_families_that_the_pod_has(ask: Asked, joined: Attachment, servers: tuple[str, ...]) -> None:
    assert ask(MANY, LO, joined)[0] == servers


@pytest.mark.parametrize(
    ("server", "joined", "why"),
    [
        (
            "127.0.0.1",
            ETH,
            "that is the pod's own loopback, not the host's: only an app of the pod can answer there",
        ),
        ("::1", BOTH, "that is the pod's own loopback, not the host's: only an app of the pod can answer there"),
        ("fe80::1", BOTH, "an address of a single link is not reached without the name of its interface"),
        ("fd00::53", ETH, "the pod has no IPv6 address to reach it from"),
        ("9.9.9.9", SIX, "the pod has no IPv4 address to reach it from"),
        ("9.9.9.9", ETH, None),
        ("fd00::53", BOTH, None),
        ("9.9.9.9", LO, None),
    ],
)
def test_a_server_that_was_asked_for_and_is_out_of_reach(
    ask: Asked, server: str, joined: Attachment, why: str | None
) -> None:
    """It is used: an app of the pod's own may be it. But it is told."""
    assert ask(HOST, joined, said=((server,), (), ()))[0] == (server,)
    assert ask.notes == ([f"--dns {server}: {why}"] if why else [])
    assert ask(HOST, joined, said=((server,), (), ()), host_network=True)[0] == (server,)
    assert ask.notes == []


def test_a_network_may_name_what_it_likes(ask: Asked) -> None:
    assert ask(HOST, named("127.0.0.1"))[0] == ("127.0.0.1",)
    assert ask.notes == []


def test_no_more_than_resolvers_take(ask: Asked) -> None:
    five = tuple(f"192.0.2.{n}" for n in range(5))
    text = "".join(f"nameserver {server}\n" for server in (*five[:1], *five))
    assert ask(text, ETH)[0] == five[:3]
    assert ask.notes == []
    assert ask("", ETH, said=(five, (), ()))[0] == five[:3]
    assert ask.notes == ["resolvers use at most 3 name servers: 192.0.2.3, 192.0.2.4 is ignored"]
    domains = tuple(f"d{n}" for n in range(40))
    assert ask(f"search {' '.join(domains)}\n", ETH)[1] == domains[:32]


def test_a_pod_that_reaches_nobody(ask: Asked) -> None:
    assert ask(HOST, LO) == ((), (), ())
    assert ask(HOST, LO, said=(("8.8.8.8",), (), ()))[0] == ("8.8.8.8",)
    assert ask.notes == []


def test_the_hosts_network_has_the_hosts_as_it_is(ask: Asked) -> None:
    text = MANY + "nameserver 127.0.0.53\nsearch a b\noptions trust-ad\n"
    parsed = parse_resolv_conf(text)
    assert len(parsed["nameservers"]) == 6
    assert ask(text, host_network=True) == tuple(parsed.values())
    assert ask(text, host_network=True, said=((), ("c",), ()))[1:] == (("c",), ("trust-ad",))
    five = tuple(f"192.0.2.{n}" for n in range(5))
    assert ask(text, host_network=True, said=(five, (), ())) == (five[:3], ("a", "b"), ())


def test_the_document_survives_the_disk() -> None:
    document = replace(
        DOCUMENT,
        dns={"nameservers": ("1.1.1.1",), "search": (), "options": ()},
        plans={"a": IsolatorPlan(capabilities=("CAP_CHOWN",), rlimits={"nofile": (1, 2)}, seccomp=b"program!")},
        hosts=(("1.2.3.4", ("x", "y")),),
        environment={"a": (("K", "V"),)},
    )
    assert PodDocument.from_json(document.to_json()) == document


def test_exact_contents_are_written_as_they_are(ask: Asked) -> None:
    """C6: whatever networks and the host say, without limits and without notes."""
    said = {
        "nameservers": ("127.0.0.1", "9.9.9.1", "9.9.9.2", "9.9.9.3", "9.9.9.3"),
        "search": (".", *(f"d{number}.example" for number in range(40))),
        "options": ("trust-ad", "ndots:5"),
    }
    result = replace(NetworkResult((AddressResult("10.1.2.3/16"),)), nameservers=("10.1.0.1",), search=("net",))
    joined = (LO, replace(ETH, result=result))
    for dns in (said, dict.fromkeys(said, ())):
        document = replace(DOCUMENT, dns=dns, dns_exact=True)
        assert pod_dns(document, joined, ask.notes.append) == dns
        assert ask.notes == []
        assert replaced_files(document, False, joined) == ("resolv.conf",)
