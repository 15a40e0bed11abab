"""Pods of busybox, run by the real parts: one state directory for the session, whose stager is built once."""

import functools
import json
import sys
from pathlib import Path

import pytest

from kurma_core.client import Settings, connect
from tests.kit.house import House
from tests.kit.images import busybox_archive, foreign_stager, image_id

_LEAKY = Path(__file__).parent / "leaky"


@pytest.fixture(scope="session")
def session_state(tmp_path_factory):
    """A state directory with the default stager in it. Other directories' tests have this fixture, too, each by
    its own name for it: building takes long in a virtual machine, and is done once."""
    return _state(tmp_path_factory.getbasetemp())


@functools.cache
def _state(base):
    directory = base / "kurma"
    directory.mkdir()
    (directory / "kurma.json").write_text("{}")
    with connect(Settings(str(directory / "kurma.json"), str(directory / "state"))) as client:
        client.stager_build("default")
    return str(directory / "state")


@pytest.fixture(scope="session")
def busybox_image(tmp_path_factory):
    """Path of an image archive made of Debian's static busybox."""
    return busybox_archive(str(tmp_path_factory.mktemp("busybox")))


@pytest.fixture(scope="session")
def busybox_id(session_state, busybox_image):
    with connect(Settings(_config_file(session_state), session_state)) as client:
        return client.images.fetch(busybox_image).id


def _config_file(state):
    return f"{state}/../kurma.json"


@pytest.fixture
def leaky_plugin(monkeypatch):
    """The network plugins in ``leaky/`` are installed, here and in processes that the test starts."""
    monkeypatch.syspath_prepend(str(_LEAKY))
    monkeypatch.setenv("PYTHONPATH", str(_LEAKY))
    yield
    for name in ("kurma_leaky", "kurma_forgetful"):
        sys.modules.pop(name, None)


@pytest.fixture
def make_house(tmp_path, session_state, busybox_id):
    """``make_house(config, state=…)``: a client with a configuration of its own, and what tests do with it."""
    houses = []

    def make(config=None, *, state=session_state, image=busybox_id):
        file = tmp_path / f"kurma-{len(houses)}.json"
        file.write_text(json.dumps(config or {}))
        houses.append(House(str(file), state, image, str(tmp_path)))
        return houses[-1]

    yield make
    for house in houses:
        house.close()


@pytest.fixture(scope="module")
def way(request):
    """How pods are run: ``here``, in process, or ``kurmad``, by way of a daemon (see ``both_ways``)."""
    return getattr(request, "param", "here")


@pytest.fixture
def served(way):
    """``served(house)``: the same; its client goes by way of a daemon, if that is the way."""
    daemons = []

    def serve(house):
        if way == "kurmad":
            from kurma_core.client.remote import RemoteClient
            from tests.integration.daemon.conftest import Kurmad

            daemons.append(Kurmad(house))
            house.client.close()
            house.client = house.connect()
            assert isinstance(house.client, RemoteClient)
        return house

    yield serve
    for daemon in daemons:
        from tests.integration.daemon.conftest import ended

        ended(daemon)


@pytest.fixture
def house(make_house, served):
    return served(make_house({"stop_timeout": 3}))


@pytest.fixture
def foreign(make_house, tmp_path, served):
    """``foreign(init, call_ins=…, config=…)``: a house whose pods run under a stager written in shell (G8)."""

    def make(init, call_ins=None, *, config=None, kurma=None, **manifest):
        path = foreign_stager(str(tmp_path), "stager", init, call_ins, **manifest)
        stager = {"image": path, "config": config or {}, "without_isolators": True}
        return served(
            make_house(
                {
                    "stager": "shell",
                    "stagers": {"shell": stager},
                    "host_image_digests": {path: image_id(path)},
                    "stop_timeout": 2,
                    **(kurma or {}),
                }
            )
        )

    return make
