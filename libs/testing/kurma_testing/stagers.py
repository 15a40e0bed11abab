"""The contract suites for stager plugins, to be subclassed: one for drivers, one for stager images.

A driver that runs pods itself (:class:`kurma_core.hookspecs.stager.StagerHooks`); run it as root, in a "host" of
its own::

    @pytest.mark.kurma_root
    @pytest.mark.kurma_driver(my_module)
    class TestMyStager(StagerContract):
        @pytest.fixture
        def make_pod(self, tmp_path):
            return lambda exec: pod_setup(tmp_path / "pod", rootfs, exec)

An image (:class:`kurma_core.hookspecs.stager.StagerImageHooks`) that the core runs by the Kurma Stager
Specification::

    @pytest.mark.kurma_driver(my_module)
    class TestMyStagerImage(StagerImageSourceContract):
        pass
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.appc.pod import PodManifest
from kurma_core.errors import StagerError
from kurma_core.hookspecs.pod_setup import AppSetup, PodSetup
from kurma_core.hookspecs.stager import StagerHooks, StagerImageHooks
from kurma_core.models.image import RenderedLayer
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.models.pod import AppStatus
from kurma_core.models.streams import Stdio
from kurma_testing.contract import DriverContract, cancelled, cancelled_midway, check_refusal, nothing_left_open

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import RunningStagerHooks

Test = TypeVar("Test", bound=Callable[..., None])
MakePod = Callable[[tuple[str, ...]], PodSetup]
ID = "sha512-" + "0" * 128
#: Seconds that a stager may take to start or to end its pod.
PATIENCE = 30.0


#: Arguments as users write them.
_ODD_WORDS = (
    "two words",
    "",
    "it's",
    'a "quote"',
    "a\nline",
    "$HOME `id` \\n *",
    "ü–𐍈",
    "\x1b[31m",
    "-rf",
    "x" * 100_000,
)


def line(*names: str) -> Callable[[Test], Test]:
    """Marks a test as one of these lines of ``kurma stager check``, which says the same of a stager's image."""

    def mark(test: Test) -> Test:
        test.lines = names  # type: ignore[attr-defined]
        return test

    return mark


def pod_setup(
    directory: str | os.PathLike[str], rootfs: str | os.PathLike[str], exec: tuple[str, ...]
) -> PodSetup:
    """Makes the core's description of a pod with one app, ``app``, on the host's network.

    :param directory: the pod's directory, which is made.
    :param rootfs: the app's only layer.
    """
    os.makedirs(os.path.join(directory, "pod"), exist_ok=True)
    command: dict[str, Any] = {"exec": list(exec), "user": "0", "group": "0"}
    image = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/app", "app": command}
    manifest = {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "apps": [{"name": "app", "image": {"id": ID}, "app": command}],
    }
    layer = RenderedLayer(ID, os.fspath(rootfs))
    return PodSetup(
        uuid="146d7cef-fbf6-41da-a2f8-eba218597f9c",
        name="test",
        directory=os.fspath(directory),
        manifest=PodManifest.parse(manifest),
        images={ID: image},
        apps=(AppSetup("app", (layer,), environment=(("KURMA_TEST", "yes"),)),),
        volumes=(),
        network_namespace=None,
        cgroup=f"kurma-contract-{uuid4().hex[:8]}",  # another test run on this machine must not use the same name
        plans={"app": IsolatorPlan()},
        pod_plan=IsolatorPlan(),
        config={},
        hostname="test",
    )


class StagerContract(DriverContract):
    """Subclasses have the mark ``kurma_driver`` and define ``make_pod(exec)``; the rootfs must have a shell at
    :attr:`shell`."""

    shell: tuple[str, ...] = ("/bin/busybox", "sh", "-c")

    @pytest.fixture
    def make_pod(self) -> MakePod:
        raise NotImplementedError("give a fixture make_pod")

    @pytest.fixture
    def stdio(self) -> Iterator[Stdio]:
        null = os.open("/dev/null", os.O_RDWR)
        yield Stdio(null, null, null)
        os.close(null)

    @pytest.fixture
    def start(self, driver: StagerHooks, make_pod: MakePod, stdio: Stdio) -> Iterator[Callable[[str], Any]]:
        """Returns a function that prepares and starts a pod with a line of shell, and returns ``(pod, running)``.
        The pods are cleaned up afterwards."""
        started: list[tuple[PodSetup, RunningStagerHooks]] = []

        def start(line: str) -> tuple[PodSetup, RunningStagerHooks]:
            pod = make_pod((*self.shell, line))
            driver.prepare(pod)
            running = driver.start(pod, stdio)
            started.append((pod, running))
            return started[-1]

        yield start
        for pod, running in started:
            driver.cleanup(pod.directory, pod.cgroup)
            running.wait(PATIENCE)  # reaps it if it is a child of this process
            running.close()

    # -- the contract --

    def test_it_has_a_name(self, driver: StagerHooks) -> None:
        assert isinstance(driver.name, str)
        assert driver.name

    def test_cleanup_without_anything(self, driver: StagerHooks, make_pod: MakePod) -> None:
        pod = make_pod((*self.shell, "true"))
        driver.cleanup(pod.directory, pod.cgroup)
        driver.cleanup(pod.directory, pod.cgroup)

    def test_cleanup_after_prepare(self, driver: StagerHooks, make_pod: MakePod) -> None:
        pod = make_pod((*self.shell, "true"))
        driver.prepare(pod)
        driver.cleanup(pod.directory, pod.cgroup)
        driver.cleanup(pod.directory, pod.cgroup)

    @line("status.kept", "end.exit-code")
    def test_a_pod_that_ends_well(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("exit 0")
        assert running.wait_running(PATIENCE) in (True, False)
        assert running.wait(PATIENCE) == 0
        assert not running.alive()
        status = driver.status(pod.directory, None)
        assert isinstance(status["app"], AppStatus)
        assert (status["app"].exited, status["app"].exit_code) == (True, 0)

    @line("status.kept")
    def test_an_exit_code_is_kept(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("exit 7")
        running.wait(PATIENCE)
        assert driver.status(pod.directory, None)["app"].exit_code == 7

    def test_a_running_pod_is_found_again(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("sleep 60")
        assert running.wait_running(PATIENCE) is True
        assert running.alive()
        assert running.wait(0) is None, "it has not ended"
        assert not select.select([running.fileno()], [], [], 0)[0]
        identity = json.loads(json.dumps(running.identity))
        again = driver.attach_to(pod.directory, identity)
        assert again is not None
        assert again.pid == running.pid
        assert again.alive()
        driver.stop(pod.directory, again, force=True)
        running.wait(PATIENCE)
        assert select.select([again.fileno()], [], [], PATIENCE)[0]
        assert not again.alive()
        again.signal(15)
        again.close()
        assert driver.attach_to(pod.directory, identity) is None

    @line("status.running")
    def test_the_status_of_a_running_pod(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("sleep 60")
        running.wait_running(PATIENCE)
        status = self._app(driver, pod, running)
        assert set(driver.status(pod.directory, running)) == {"app"}
        assert status.exited is False
        if status.pid is not None:  # some stagers do not know it
            os.kill(status.pid, 0)

    @line("stop.signal")
    def test_stop_ends_it(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("trap 'exit 3' TERM; while :; do sleep 0.1; done")
        running.wait_running(PATIENCE)
        driver.stop(pod.directory, running, force=False)
        running.wait(PATIENCE)
        assert not running.alive()

    @line("end.left-behind")
    def test_cleanup_ends_what_is_left(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("trap '' TERM; sleep 60 & wait")
        running.wait_running(PATIENCE)
        driver.cleanup(pod.directory, pod.cgroup)
        assert select.select([running.fileno()], [], [], PATIENCE)[0]
        driver.cleanup(pod.directory, pod.cgroup)

    def test_it_may_be_started_again(
        self, driver: StagerHooks, make_pod: MakePod, stdio: Stdio, start: Callable[[str], Any]
    ) -> None:
        pod, running = start("exit 5")
        running.wait(PATIENCE)
        driver.cleanup(pod.directory, pod.cgroup)
        driver.prepare(pod)
        again = driver.start(pod, stdio)
        again.wait(PATIENCE)
        again.close()
        assert driver.status(pod.directory, None)["app"].exit_code == 5

    def test_an_unknown_call_in(self, driver: StagerHooks, start: Callable[[str], Any], stdio: Stdio) -> None:
        pod, running = start("sleep 60")
        running.wait_running(PATIENCE)
        with pytest.raises(StagerError):
            driver.call(pod.directory, running, "no-such-call-in", (), stdio, None)

    @line("app.arguments")
    def test_arguments_arrive_as_they_are(self, driver: StagerHooks, make_pod: MakePod, stdio: Stdio) -> None:
        """Hostile text is text: each word is compared with itself, by an app that knows them all."""
        for word in _ODD_WORDS:
            pod = make_pod(
                (*self.shell, 'test ${#1} = "$2" && test "$1" = "$3"', "sh", word, str(len(word.encode())), word)
            )
            driver.prepare(pod)
            running = driver.start(pod, stdio)
            try:
                running.wait(PATIENCE)
                assert driver.status(pod.directory, None)["app"].exit_code == 0, word[:20]
            finally:
                running.close()
                driver.cleanup(pod.directory, pod.cgroup)

    @line("status.killed")
    def test_an_app_that_a_signal_ended(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("sleep 60")
        running.wait_running(PATIENCE)
        pid = self._app(driver, pod, running).pid
        if pid is None:
            pytest.skip("this stager does not know its app's process")
        os.kill(pid, 9)
        running.wait(PATIENCE)
        assert driver.status(pod.directory, None)["app"].exit_code == 128 + 9

    @line("end.start-failure")
    def test_a_program_that_is_not_there(self, driver: StagerHooks, make_pod: MakePod, stdio: Stdio) -> None:
        pod = make_pod(("/no/such/program",))
        try:
            driver.prepare(pod)
            running = driver.start(pod, stdio)
            try:
                running.wait_running(PATIENCE)
                assert running.wait(PATIENCE) or driver.status(pod.directory, None)["app"].exit_code
            finally:
                running.close()
        except StagerError as error:
            check_refusal(error)
        driver.cleanup(pod.directory, pod.cgroup)

    def test_force_ends_an_app_that_ignores_the_signal(
        self, driver: StagerHooks, start: Callable[[str], Any]
    ) -> None:
        pod, running = start("trap '' TERM; while :; do sleep 0.1; done")
        running.wait_running(PATIENCE)
        driver.stop(pod.directory, running, force=True)
        assert running.wait(PATIENCE) is not None
        assert not running.alive()

    def test_close_lets_the_pod_go_on(self, driver: StagerHooks, start: Callable[[str], Any]) -> None:
        pod, running = start("sleep 60")
        running.wait_running(PATIENCE)
        with nothing_left_open():
            for _ in range(2):
                again = driver.attach_to(pod.directory, running.identity)
                assert again is not None
                assert again.alive()
                again.close()

    def test_a_cancelled_prepare_can_be_cleaned_up(self, driver: StagerHooks, make_pod: MakePod) -> None:
        pod = make_pod((*self.shell, "true"))
        with nothing_left_open(), cancelled():
            driver.prepare(pod)
        driver.cleanup(pod.directory, pod.cgroup)
        driver.cleanup(pod.directory, pod.cgroup)

    def test_a_start_that_is_cancelled_anywhere_can_be_cleaned_up(
        self, driver: StagerHooks, make_pod: MakePod, stdio: Stdio
    ) -> None:
        pod = make_pod((*self.shell, "sleep 60"))

        def start() -> None:
            driver.prepare(pod)
            running = driver.start(pod, stdio)
            try:
                running.wait_running(PATIENCE)
            finally:
                driver.cleanup(pod.directory, pod.cgroup)
                running.wait(PATIENCE)
                running.close()

        cancelled_midway(start, lambda: driver.cleanup(pod.directory, pod.cgroup))

    def _app(self, driver: StagerHooks, pod: PodSetup, running: RunningStagerHooks) -> AppStatus:
        """The status of the app, once there is one."""
        deadline = time.monotonic() + PATIENCE
        while not (status := driver.status(pod.directory, running)).get("app"):
            assert time.monotonic() < deadline, "status does not tell of the app"
            time.sleep(0.01)
        return status["app"]


class StagerImageSourceContract(DriverContract):
    """Subclasses have the mark ``kurma_driver``."""

    #: Call-ins that the specification requires of every stager.
    call_ins: tuple[str, ...] = ("status", "logs", "run", "attach")

    @pytest.fixture
    def built(self, driver: StagerImageHooks, tmp_path: Path) -> tuple[Path, Mapping[str, Any]]:
        rootfs = tmp_path / "rootfs"
        rootfs.mkdir()
        return rootfs, driver.build(str(rootfs))

    # -- the contract --

    def test_the_fingerprint_is_stable_and_cheap(self, driver: StagerImageHooks) -> None:
        first = driver.fingerprint()
        start = time.monotonic()
        assert driver.fingerprint() == first
        assert time.monotonic() - start < 0.5, "it is asked at every run"
        assert first
        assert isinstance(first, str)

    @line("image.dependencies")
    def test_the_manifest_is_one(self, built: tuple[Path, Mapping[str, Any]]) -> None:
        """It has no dependencies: a stager's root is never stacked (Kurma Stager Specification, Prerequisites)."""
        manifest = ImageManifest.parse(json.loads(json.dumps(built[1])))
        assert not manifest.dependencies
        assert manifest.app is not None
        assert manifest.app.exec

    @line("image.command")
    def test_what_it_executes_is_there(self, built: tuple[Path, Mapping[str, Any]]) -> None:
        rootfs, manifest = built
        programs = [manifest["app"]["exec"][0], *(f"/opt/stager/{name}" for name in self.call_ins)]
        for program in programs:
            info = _lookup(rootfs, program)
            assert stat.S_ISREG(info.st_mode), program
            assert info.st_mode & stat.S_IXUSR, program

    @line("image.places")
    def test_it_leaves_the_cores_places_alone(self, built: tuple[Path, Mapping[str, Any]]) -> None:
        """Kurma Stager Specification, Filesystem Configuration."""
        for name in ("manifest", "layers", "volumes", "pod", "dev", "proc", "sys"):
            place = built[0] / name
            assert not place.exists() or (place.is_dir() and not any(place.iterdir())), f"/{name}"

    def test_links_stay_inside(self, built: tuple[Path, Mapping[str, Any]]) -> None:
        for path in built[0].rglob("*"):
            if path.is_symlink():
                target = os.readlink(path)
                depth = len(path.relative_to(built[0]).parts) - 1
                up = sum(part == ".." for part in target.split("/"))
                assert target.startswith("/") or up <= depth, f"{path} → {target}"

    def test_nobody_but_root_may_change_it(self, built: tuple[Path, Mapping[str, Any]]) -> None:
        for path in built[0].rglob("*"):
            mode = path.lstat().st_mode
            assert stat.S_ISLNK(mode) or not mode & (stat.S_IWGRP | stat.S_IWOTH), path
            assert stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode), f"{path} is something odd"

    def test_the_same_fingerprint_is_the_same_image(
        self, driver: StagerImageHooks, built: tuple[Path, Mapping[str, Any]], tmp_path: Path
    ) -> None:
        again = tmp_path / "again"
        again.mkdir()
        assert driver.build(str(again)) == built[1]
        assert _tree(again) == _tree(built[0])


def _lookup(rootfs: Path, program: str) -> os.stat_result:
    """Returns the status of a path inside the rootfs; links are resolved as in a chroot."""
    from kurma_core.linux.beneath import open_in_root

    root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_in_root(root, program, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.fstat(found)
        finally:
            os.close(found)
    finally:
        os.close(root)


def _tree(top: Path) -> dict[str, tuple[int, str]]:
    found = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            content = os.readlink(path)
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else ""
        found[str(path.relative_to(top))] = (mode, content)
    return found
