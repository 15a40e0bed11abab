import _socket
import marshal
import os

import pytest

from kurma_core.spawn_plan import Bind, EnterPlan, File, Overlay, RootPlan, SpawnPlan, proc, sysfs, tmpfs
from kurma_core.spawner import wire
from kurma_core.spawner.client import encode


def test_a_plan_crosses_as_plain_values():
    root = RootPlan(
        (Overlay(("/a", "/b")), proc(), sysfs(), tmpfs("/tmp", mode="1777"), Bind("/s", "/t"), File("/f", b"x"))
    )
    plan = SpawnPlan(("/bin/sh",), {"A": "1"}, root=root, namespaces=frozenset({"uts", "ipc"}), fds={4: 9, 0: 7})
    message, fds = encode(plan)
    assert marshal.loads(marshal.dumps(message)) == message
    assert message["action"] == "start"
    assert message["fds"] == [0, 4]
    assert fds == [7, 9]
    assert message["namespaces"] == ["ipc", "uts"]
    assert [one["kind"] for one in message["root"]] == [
        "overlay",
        "filesystem",
        "filesystem",
        "filesystem",
        "bind",
        "file",
    ]
    assert message["root"][3]["options"] == {"mode": "1777"}
    assert "ro" in message["root"][2]["attributes"]


def test_a_pidfd_goes_last():
    message, fds = encode(EnterPlan(77, ("x",), pidfd=5, fds={3: 8}))
    assert message["action"] == "enter"
    assert message["pidfd"] is True
    assert fds == [8, 5]


@pytest.fixture
def pair():
    one, other = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    yield one, other
    one.close()
    other.close()


def test_messages_carry_descriptors(pair):
    one, other = pair
    read_end, write_end = os.pipe()
    wire.send(one, {"content": b"x" * 50_000}, [write_end])
    os.close(write_end)
    message, fds = wire.receive(other)
    assert len(message["content"]) == 50_000
    assert not os.get_inheritable(fds[0])
    os.write(fds[0], b"through")
    os.close(fds[0])
    assert os.read(read_end, 100) == b"through"
    os.close(read_end)


def test_the_end_is_none(pair):
    one, other = pair
    one.send(b"\x05\0\0")
    one.close()
    assert wire.receive(other) is None
