"""Who finds whom by which name, and the record of it (W10)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kurma_core.models.network import AddressResult, Attachment, NetworkRequest, NetworkResult
from kurma_core.pods.network.name_resolution import Lines, Names


def member(name: str | None, *networks: tuple[str, str], hostname: str | None = None, own: str = "") -> Any:
    hostname = hostname or name
    names = {each.lower() for each in (name, hostname, *own.split()) if each}
    addresses = {network: [address] for network, address in networks}
    return {"name": name, "hostname": hostname, "own": sorted(names), "networks": addresses}


def told(members: dict[str, Any]) -> dict[str, list[str]]:
    """By pod: its lines, without their tag."""
    lines = Lines(members)
    return {
        uuid: [line.removesuffix("\t# kurma") for line in lines.of(uuid).decode().splitlines()] for uuid in members
    }


def test_who_shares_a_network_at_its_address_there() -> None:
    pods = {
        "a": member("a", ("one", "10.1.0.1")),
        "b": member("b", ("one", "10.1.0.2"), ("two", "10.2.0.2"), hostname="b-host"),
        "c": member("c", ("two", "10.2.0.3")),
        "d": member("d", ("three", "10.3.0.4")),
    }
    assert told(pods) == {
        "a": ["10.1.0.2\tb b-host"],
        "b": ["10.1.0.1\ta", "10.2.0.3\tc"],
        "c": ["10.2.0.2\tb b-host"],
        "d": [],
    }


def test_a_pods_name_is_stronger_than_anothers_host_name() -> None:
    pods = {
        "a": member("a", ("one", "10.0.0.1")),
        "b": member("b", ("one", "10.0.0.2"), hostname="A"),
        "c": member("c", ("one", "10.0.0.3"), hostname="shared"),
        "d": member("d", ("one", "10.0.0.4"), hostname="shared"),
    }
    found = told(pods)
    assert found["c"] == ["10.0.0.1\ta", "10.0.0.2\tb", "10.0.0.4\td"]
    assert found["a"] == ["10.0.0.2\tb", "10.0.0.3\tc shared", "10.0.0.4\td shared"]
    # To itself, it is what it is called.
    assert found["b"][0] == "10.0.0.3\tc shared"


def test_what_its_user_said_is_stronger() -> None:
    pods = {"a": member("a", ("one", "10.0.0.1"), own="DB other"), "db": member("db", ("one", "10.0.0.2"))}
    assert told(pods)["a"] == []
    pods["db"] = member("db", ("one", "10.0.0.2"), hostname="database")
    assert told(pods)["a"] == ["10.0.0.2\tdatabase"]


def test_a_name_that_is_no_host_name_is_not_given() -> None:
    pods = {"a": member("a", ("one", "10.0.0.1")), "b": member(None, ("one", "10.0.0.2"))}
    assert told(pods) == {"a": [], "b": ["10.0.0.1\ta"]}
    assert told({**pods, "b": member(None, ("one", "10.0.0.2"), hostname="h")})["a"] == ["10.0.0.2\th"]


class Town:
    """Pods of a state directory, whose stagers have made hosts files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.names = Names(str(path), str(path / "pods"), self.notes.append)
        (path / "pods").mkdir()

    def join(
        self, uuid: str, address: str, *, network: str = "one", name: str = "", mine: tuple[str, ...] = ()
    ) -> None:
        namespace = self.path / f"netns-{uuid}"
        namespace.touch()
        (self.path / "pods" / uuid).mkdir(exist_ok=True)
        document: Any = SimpleNamespace(
            uuid=uuid,
            name=name or uuid,
            hostname=name or uuid,
            network_namespace=str(namespace),
            hosts=(("192.0.2.9", mine),),
        )
        self.names.join(document, (joined(network, address),))
        (self.hosts(uuid) / "main").write_text("127.0.0.1 localhost\n" + self.lines(uuid))

    def leave(self, uuid: str, network: str = "one") -> None:
        self.names.leave(uuid, (joined(network, "0.0.0.0"),))

    def hosts(self, uuid: str) -> Path:
        return self.path / "pods" / uuid / "pod" / "hosts"

    def lines(self, uuid: str, file: str = ".names") -> str:
        return (self.hosts(uuid) / file).read_text()

    def sees(self, uuid: str) -> dict[str, str]:
        """Names and addresses, by what its app reads."""
        lines = [line.split() for line in self.lines(uuid, "main").splitlines()[1:]]
        assert [line[0:2] for line in lines] == [line.split()[:2] for line in self.lines(uuid).splitlines()]
        return {line[1]: line[0] for line in lines}

    @property
    def record(self) -> Path:
        return self.path / "networks" / "names.json"


def joined(network: str, address: str) -> Attachment:
    result = NetworkResult((AddressResult(f"{address}/16"),))
    return Attachment(network, "bridge", "eth0", {}, NetworkRequest(network), result=result)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path)


def test_pods_come_and_go(town: Town) -> None:
    town.join("a", "10.0.0.1")
    town.join("b", "10.0.0.2")
    town.join("c", "10.0.0.3", network="two")
    assert town.sees("a") == {"b": "10.0.0.2"}
    assert town.sees("b") == {"a": "10.0.0.1"}
    assert town.sees("c") == {}
    town.join("b", "10.0.0.9")
    assert town.sees("a") == {"b": "10.0.0.9"}
    for _ in range(2):
        town.leave("b")
        assert town.sees("a") == {}
    town.leave("a")
    town.leave("c", "two")
    assert not town.record.exists()
    assert town.notes == []


def test_names_that_its_user_gave_are_nobody_elses_to_it(town: Town) -> None:
    town.join("a", "10.0.0.1", mine=("other", "DB"))
    town.join("db", "10.0.0.2")
    town.join("c", "10.0.0.3")
    assert set(town.sees("a")) == {"c"}
    assert set(town.sees("c")) == {"a", "db"}


def test_a_pod_whose_namespace_is_gone_is_found_no_more(town: Town) -> None:
    """After a reboot say: whoever comes next tells the others."""
    for number, uuid in enumerate("abc", 1):
        town.join(uuid, f"10.0.0.{number}")
    (town.path / "netns-b").unlink()
    town.join("d", "10.9.0.1", network="two")
    assert town.sees("a") == {"c": "10.0.0.3"}
    assert set(json.loads(town.record.read_bytes())["pods"]) == {"a", "c", "d"}


def test_a_pod_of_which_nothing_can_be_read_any_more(town: Town) -> None:
    town.join("a", "10.0.0.1")
    town.join("b", "10.0.0.2")
    town.names.leave("b", None)
    assert town.sees("a") == {}


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}",
     '{"version": 2, "pods": {"x": {"namespace": "/", "name": "x", "networks": {"one": ["10.0.0.7"]}}}}',
     '{"version": 1, "pods": 3}',
     '{"version": 1, "pods": {"x": 1}}'],
)  # fmt: skip
def test_a_record_that_is_nonsense_is_made_anew(town: Town, text: str) -> None:
    town.join("a", "10.0.0.1")
    town.record.write_text(text)
    town.join("b", "10.0.0.2")
    town.join("a", "10.0.0.1")
    assert town.sees("a") == {"b": "10.0.0.2"}


def test_a_death_at_any_write_is_put_right_by_the_next(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    from kurma_core.pods.network import hosts_and_resolv_conf

    for number in (1, 2, 3):
        town.join(f"p{number}", f"10.0.0.{number}")
    update: Callable[..., bytes] = hosts_and_resolv_conf.update

    for after in range(6):
        left = after

        def dies(*words: Any) -> bytes:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return update(*words)

        with monkeypatch.context() as patch:
            patch.setattr(hosts_and_resolv_conf, "update", dies)
            with pytest.raises(KeyboardInterrupt):
                town.leave("p2")
        town.leave("p2")
        assert town.sees("p1") == {"p3": "10.0.0.3"}
        assert town.sees("p3") == {"p1": "10.0.0.1"}
        town.join("p2", "10.0.0.2")
        assert set(town.sees("p1")) == {"p2", "p3"}
        if after >= 3:
            break


def test_a_death_while_the_record_is_replaced_leaves_nothing(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        town.join("a", "10.0.0.1")
    monkeypatch.undo()
    assert [path.name for path in town.record.parent.glob("*.tmp")] == ["names.json.tmp"]
    town.join("a", "10.0.0.1")
    assert not list(town.record.parent.glob("*.tmp"))
    (town.record.parent / "names.json.tmp").touch()
    town.leave("a")
    assert not list(town.record.parent.glob("*.tmp"))


def test_one_that_cannot_be_told_keeps_nobody_else_from_it(town: Town) -> None:
    for number, uuid in enumerate("abc", 1):
        town.join(uuid, f"10.0.0.{number}")
    (town.hosts("a") / ".names").unlink()
    (town.hosts("a") / ".names").symlink_to("/etc/hostname")
    (town.path / "pods" / "b").rename(town.path / "pods" / "gone")
    town.join("d", "10.0.0.4")
    assert set(town.sees("c")) == {"a", "b", "d"}
    assert len(town.notes) == 1
    assert town.notes[0].startswith("pod a: its hosts files do not know all pods by name: ")


def test_many_at_once(town: Town) -> None:
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda n: town.join(f"p{n}", f"10.0.0.{n}"), range(40)))
    pods = {f"p{n}" for n in range(40)}
    for pod in pods:
        assert {line.split()[1] for line in town.lines(pod).splitlines()} == pods - {pod}


def test_the_hundredth_costs_a_few_milliseconds(town: Town) -> None:
    for number in range(99):
        town.join(f"p{number}", f"10.0.0.{number}")
    took = []
    for _ in range(3):
        began = time.process_time()
        town.join("p99", "10.0.0.99")
        town.leave("p99")
        took.append((time.process_time() - began) / 2)
    assert min(took) < 0.025
    assert len(town.sees("p7")) == 98
