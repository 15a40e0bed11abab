"""Fixtures for every test of this checkout. What they need is imported when a test asks for it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration import leftovers

if TYPE_CHECKING:
    from kurma_testing.webserver import WebServer

    from kurma_core.client import Client
    from kurma_core.image_store import ImageStore
    from tests.kit.command import Kurma
    from tests.kit.house import House
    from tests.kit.keys import Signers
    from tests.kit.kurmad import Kurmad


# -- images and keys --


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """An image store that is still to be made."""
    from kurma_core.image_store import ImageStore

    return ImageStore(f"{tmp_path}/images")


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A web server without pages."""
    from kurma_testing.webserver import web_server

    with web_server() as server:
        yield server


@pytest.fixture(scope="session")
def signers() -> Iterator[Signers]:
    """Keys of alice, bob and mallory, made once per run. A test that needs others makes a ``gnupg_home``."""
    from tests.kit.keys import gnupg_home

    with gnupg_home() as made:
        for name in ("alice", "bob", "mallory"):
            made.make(name)
        yield made


# -- a Kurma with pods --


@pytest.fixture(scope="session")
def session_state(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state directory that tests share. The default stager is in it: it is built once per run."""
    from tests.kit.client import open_client

    directory = tmp_path_factory.mktemp("kurma", numbered=False)
    (directory / "kurma.json").write_text("{}")
    with open_client(str(directory / "kurma.json"), str(directory / "state")) as client:
        client.stager_build("default")
    return str(directory / "state")


@pytest.fixture(scope="module", autouse=True)
def nothing_left_for_others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module leaves no pods, secrets and volumes in the state directory that tests share, and no links on the
    tests' host: they would be in the way of every module that follows."""
    links = leftovers.links()
    yield
    shared = str(tmp_path_factory.getbasetemp() / "kurma/state")
    left = [leftovers.told(shared, pod) for pod in leftovers.pods(shared)]
    for kind in ("secrets", "volumes"):
        left += [f"{kind}/{name}" for name in leftovers.names(f"{shared}/{kind}") if not name.startswith(".")]
    assert not left, "left in the shared state directory: " + "\n".join(left)
    assert leftovers.links() == links


@pytest.fixture(scope="session")
def busybox_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of an image archive made of Debian's static busybox."""
    from tests.kit.images import busybox_archive

    return busybox_archive(str(tmp_path_factory.mktemp("busybox")))


@pytest.fixture(scope="session")
def busybox_id(session_state: str, busybox_image: str) -> str:
    """The ID of that image, in the shared state directory."""
    from tests.kit.client import open_client

    with open_client(f"{session_state}/../kurma.json", session_state) as client:
        return client.here.images.fetch(busybox_image).id


@pytest.fixture
def make_house(tmp_path: Path, session_state: str, busybox_id: str) -> Iterator[Callable[..., House]]:
    """``make_house(config, state=…)``: a client with a configuration of its own, and what tests do with it."""
    from tests.kit.house import House

    houses: list[House] = []

    def make(
        config: dict[str, Any] | None = None, *, state: str = session_state, image: str = busybox_id
    ) -> House:
        file = tmp_path / f"kurma-{len(houses)}.json"
        file.write_text(json.dumps(config or {}))
        houses.append(House(str(file), state, image, str(tmp_path)))
        return houses[-1]

    yield make
    for house in houses:
        house.close()


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> str:
    """How pods are run: ``here``, in process, or ``kurmad``, by way of a daemon (see ``both_ways``)."""
    return getattr(request, "param", "here")


@pytest.fixture
def served(way: str) -> Iterator[Callable[[House], House]]:
    """``served(house)``: the same; its client goes by way of a daemon, if that is the way."""
    with contextlib.ExitStack() as stack:

        def serve(house: House) -> House:
            if way == "kurmad":
                from tests.kit.kurmad import Kurmad, ended

                stack.callback(ended, Kurmad(house))
                house.reopen()
                assert house.client.remote
            return house

        yield serve


@pytest.fixture
def house(make_house: Callable[..., House], served: Callable[[House], House]) -> House:
    """A house whose pods run in process, or by way of a daemon in tests of ``both_ways``."""
    return served(make_house({"stop_timeout": 3}))


@pytest.fixture
def foreign(
    make_house: Callable[..., House], tmp_path: Path, served: Callable[[House], House]
) -> Callable[..., House]:
    """``foreign(init, call_ins=…, config=…)``: a house whose pods run under a stager written in shell (G8)."""
    from tests.kit.images import foreign_stager, image_id

    def make(
        init: str,
        call_ins: dict[str, str] | None = None,
        *,
        config: dict[str, Any] | None = None,
        kurma: dict[str, Any] | None = None,
        **manifest: Any,
    ) -> House:
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


@pytest.fixture
def kurmad(make_house: Callable[..., House]) -> Iterator[Callable[..., Kurmad]]:
    """Makes daemons; those that run at the end are ended."""
    from tests.kit.kurmad import Kurmad, ended

    with contextlib.ExitStack() as stack:

        def make(*arguments: str, house: House | None = None, **options: Any) -> Kurmad:
            daemon = Kurmad(house or make_house(), *arguments, **options)
            stack.callback(ended, daemon)
            return daemon

        yield make


@pytest.fixture
def ask() -> Iterator[Callable[[Kurmad], Client]]:
    """``ask(daemon)``: a client that goes by way of that daemon."""
    with contextlib.ExitStack() as stack:
        yield lambda daemon: stack.enter_context(daemon.house.connect(host=f"unix:{daemon.socket}"))


# -- the command --


@pytest.fixture(scope="session")
def kurma_command(session_state: str, tmp_path_factory: pytest.TempPathFactory) -> Kurma:
    """``kurma`` on the shared state directory. Its image prints ``hello`` and ends with 3."""
    from tests.kit.command import Kurma
    from tests.kit.images import busybox_archive, shell

    app = shell("echo hello; echo sorry >&2; exit 3")
    image = busybox_archive(str(tmp_path_factory.mktemp("kurma-cli")), app)
    return Kurma(Path(session_state), Path(session_state).with_name("kurma.json"), image)


@pytest.fixture(scope="session")
def kurmad_place(kurma_command: Kurma, tmp_path_factory: pytest.TempPathFactory) -> Kurma:
    """The same on a state directory that a kurmad serves: commands in process must not find that one."""
    from tests.kit.command import Kurma

    directory = tmp_path_factory.mktemp("kurmad-cli")
    command = Kurma(directory / "state", directory / "kurma.json", kurma_command.image)
    # No prestarted pods: they would outlast the test that has them made.
    command.config.write_text('{"daemon": {"prestarted_stagers": 0}}')
    # The first use of a new machine's disk and program may take longer than other commands.
    command.out("stager", "build", "default", timeout=300)
    return command


@pytest.fixture(scope="module")
def kurmad_command(kurmad_place: Kurma) -> Iterator[Kurma]:
    """Commands by way of a kurmad. It is a child of this process, and other modules' tests count those."""
    from tests.kit.waiting import until

    with open(kurmad_place.directory / "kurmad.log", "ab") as log:
        daemon = kurmad_place.popen("daemon", "run", stdout=None, stderr=log)
    until((kurmad_place.state / "run/kurmad.sock").exists, "kurmad's socket")
    yield kurmad_place
    daemon.terminate()
    assert daemon.wait(20) == 0


@pytest.fixture(scope="module")
def commands(request: pytest.FixtureRequest, kurma_command: Kurma, way: str) -> Kurma:
    """Those of a test's way. A kurmad is started where a test goes by way of one, and before that test: what it
    leaves is told by what there was before it."""
    return request.getfixturevalue("kurmad_command") if way == "kurmad" else kurma_command


@pytest.fixture
def kurma(commands: Kurma) -> Iterator[Kurma]:
    """A command; whatever pods and named volumes a test leaves are removed."""
    yield commands
    for line in commands.out("list", "--no-legend").splitlines():
        commands("rm", "--force", line.split()[0])
    if (commands.state / "volumes").exists():
        commands("volume", "prune", "--force")


@pytest.fixture
def sleeping(kurma: Kurma) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``sleeping(NAME, *OPTIONS)``: a pod that runs in the foreground of a process, once it has said so."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *options: str, script: str = "echo up; exec sleep 1000") -> subprocess.Popen[str]:
        words = ("--name", name, "--net", "none", *options, "--exec", "/bin/sh", kurma.image, "--", "-c", script)
        process = kurma.popen("run", *words)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "up\n", line or (process.stderr and process.stderr.read())
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
