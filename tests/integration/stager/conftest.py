"""Pods run by the default stager in the root that the core makes, on busybox from Debian."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from kurma_stager_default import image

from kurma_core.appc.image import ImageManifest
from kurma_core.appc.pod import PodManifest
from kurma_core.hookspecs.pod_setup import AppSetup, PodSetup, VolumeSetup
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.image import RenderedLayer
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.models.pod import MountSetup
from kurma_core.models.streams import Stdio
from kurma_core.spawner.client import Spawner
from kurma_core.staging.aci_stager import AciStager
from kurma_core.staging.callin import StagerTimes
from kurma_core.staging.stager_process import StagerImage, StagerProcess
from kurma_core.value import replace
from tests.kit.images import busybox_root
from tests.kit.waiting import until


class TestPod:
    """One pod: its stager's process, what it wrote, what it can be asked."""

    __test__ = False

    def __init__(
        self,
        stager: AciStager,
        setup: PodSetup,
        stdin: int,
        begin: Callable[[AciStager, PodSetup], StagerProcess] | None = None,
    ) -> None:
        """:param begin: how it is started; None: as pods are."""
        self.stager = stager
        self.setup = setup
        self.process: StagerProcess
        if begin is not None:
            self.process = begin(stager, setup)
            return
        null = os.open("/dev/null", os.O_RDWR)
        self.process = stager.start(setup, Stdio(stdin if stdin >= 0 else null, null, null))
        os.close(null)

    @property
    def directory(self) -> str:
        return self.setup.directory

    def started(self, timeout: float = 20) -> TestPod:
        self.process.wait_running(timeout)
        return self

    def ended(self, timeout: float = 20) -> int:
        """The stager's exit status, once it has ended."""
        code = self.process.wait(timeout)
        assert code is not None, f"still running; {self.output()}"
        return code

    def stop(self) -> int:
        self.process.signal(signal.SIGTERM)
        return self.ended()

    def output(self) -> str:
        with open(f"{self.directory}/stager/output") as file:
            return file.read()

    def document(self) -> dict[str, Any]:
        with open(f"{self.directory}/pod/status.json") as file:
            value: dict[str, Any] = json.load(file)
        return value

    def app(self, name: str = "main") -> dict[str, Any]:
        value: dict[str, Any] = self.document()["apps"][name]
        return value

    def raw_log(self, name: str = "main.log") -> bytes:
        with open(f"{self.directory}/pod/logs/{name}", "rb") as file:
            return file.read()

    def log(self, name: str = "main.log", stream: bytes | None = None) -> str:
        """The text of a log, as the app wrote it; not of a line that is just being written."""
        text = b""
        for line in self.raw_log(name).split(b"\n")[:-1]:
            _, source, kind, rest = line.split(b" ", 3)
            if stream is None or source == stream:
                text += rest + (b"\n" if kind == b"F" else b"")
        return text.decode(errors="surrogateescape")

    def wait_log(self, text: str, name: str = "main.log", timeout: float = 20) -> str:
        def found() -> str:
            with contextlib.suppress(FileNotFoundError):
                log = self.log(name)
                return log if text in log else ""
            return ""

        return until(found, lambda: f"{text!r} in the log: {self.log(name)!r}; {self.output()}", timeout)

    def call(
        self, verb: str, *arguments: str, document: bytes | None = None, stdin: bytes = b""
    ) -> tuple[int, str, str]:
        """A call-in: exit code, stdout, stderr."""
        files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 - closed below
        try:
            files[0].write(stdin)
            files[0].seek(0)
            stdio = Stdio(*[file.fileno() for file in files])
            code = self.stager.call(self.directory, self.process, verb, arguments, stdio, document)
            for file in files:
                file.seek(0)
            return code, files[1].read().decode(), files[2].read().decode()
        finally:
            for file in files:
                file.close()

    def run(self, *argv: str, app: str = "main", stdin: bytes = b"", **fields: Any) -> tuple[int, str, str]:
        """The ``run`` call-in."""
        return self.call("run", app, document=json.dumps({"exec": list(argv), **fields}).encode(), stdin=stdin)


@pytest.fixture(scope="session")
def stager_tree(tmp_path_factory: pytest.TempPathFactory) -> StagerImage:
    path = str(tmp_path_factory.mktemp("stager-image"))
    manifest = image.build(path)
    return StagerImage("sha512-" + "0" * 128, path, ImageManifest.parse(dict(manifest)))


@pytest.fixture(scope="session", name="busybox_root")
def root_with_users(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root of busybox whose users have homes and groups."""
    users = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:100:Alice:/home/alice:/bin/ash\n"
    groups = "root:x:0:\nusers:x:100:\nwheel:x:10:root,alice\nstaff:x:50:bob\n"
    root = busybox_root(str(tmp_path_factory.mktemp("busybox-root")), {"etc/passwd": users, "etc/group": groups})
    os.makedirs(f"{root}/home/alice")
    os.makedirs(f"{root}/work")
    return root


@pytest.fixture
def pods(stager_tree: StagerImage, busybox_root: str, tmp_path: Any) -> Iterator[Callable[..., TestPod]]:
    """``pods({"main": APP}, plans=…, …)`` starts a pod; all are torn down, and what is left is an error."""
    made: list[TestPod] = []
    cgroups: list[CgroupTree] = []
    with Spawner() as spawner:

        def start(
            apps: Mapping[str, Mapping[str, Any]],
            *,
            roots: Sequence[str] | Mapping[str, Sequence[str]] = (),
            plans: Mapping[str, IsolatorPlan] | None = None,
            pod_plan: IsolatorPlan | None = None,
            volumes: Mapping[str, str] | None = None,
            mounts: Mapping[str, Sequence[MountSetup]] | None = None,
            annotations: Mapping[str, str] | None = None,
            app_annotations: Mapping[str, str] | None = None,
            read_only: bool = False,
            config: Mapping[str, Any] | None = None,
            environment: Sequence[tuple[str, str]] = (),
            interactive: str = "",
            stdin: int = -1,
            times: StagerTimes | None = None,
            dns: Mapping[str, tuple[str, ...]] | None = None,
            hosts: tuple[tuple[str, tuple[str, ...]], ...] = (),
            replace_files: tuple[str, ...] = (),
            stager_image: StagerImage = stager_tree,
            network_namespace: str | None = None,
            begin: Callable[[AciStager, PodSetup], StagerProcess] | None = None,
        ) -> TestPod:
            name = str(uuid.uuid4())
            directory = str(tmp_path / name)
            os.makedirs(directory)
            layers: dict[str, RenderedLayer] = {}

            def layer(path: str) -> RenderedLayer:
                return layers.setdefault(path, RenderedLayer(f"sha512-{len(layers):0128x}", path))

            def layers_of(app: str) -> tuple[RenderedLayer, ...]:
                paths = roots.get(app, ()) if isinstance(roots, Mapping) else roots
                return tuple(layer(path) for path in (paths or [busybox_root]))

            setups = tuple(
                AppSetup(
                    app,
                    layers_of(app),
                    tuple((mounts or {}).get(app, ())),
                    tuple(environment),
                    app == interactive,
                    replace_files=replace_files,
                )
                for app in apps
            )
            notes = [{"name": key, "value": value} for key, value in (app_annotations or {}).items()]
            manifest = PodManifest.parse(
                {
                    "acVersion": "0.8.11",
                    "acKind": "PodManifest",
                    "apps": [
                        {
                            "name": setup.name,
                            "image": {"id": setup.layers[0].id},
                            "app": {**apps[setup.name], "group": apps[setup.name]["group"] or "0"},
                            "readOnlyRootFS": read_only,
                            "annotations": notes,
                            "mounts": [{"volume": one.volume, "path": one.path} for one in setup.mounts],
                        }
                        for setup in setups
                    ],
                    "volumes": [
                        {"name": key, "kind": "host", "source": value} for key, value in (volumes or {}).items()
                    ],
                    "annotations": [{"name": key, "value": value} for key, value in (annotations or {}).items()],
                }
            )
            # No manifest that somebody writes has an empty group; one made of a Docker image may.
            manifest = replace(
                manifest,
                apps=tuple(
                    replace(one, app=replace(one.app, group=apps[one.name]["group"])) if one.app else one
                    for one in manifest.apps
                ),
            )
            cgroup = CgroupTree(f"kurma-test/{name}")
            cgroup.create()
            cgroups.append(cgroup)
            setup = PodSetup(
                uuid=name,
                name="test",
                directory=directory,
                manifest=manifest,
                images={
                    one.id: {"acKind": "ImageManifest", "name": "example.com/test"} for one in layers.values()
                },
                apps=setups,
                volumes=tuple(VolumeSetup(key, value, False) for key, value in (volumes or {}).items()),
                network_namespace=network_namespace,
                cgroup=cgroup.name,
                plans={app: (plans or {}).get(app, IsolatorPlan()) for app in apps},
                pod_plan=pod_plan or IsolatorPlan(),
                config=config or {},
                hostname="test-host",
                dns=dns,
                hosts=hosts,
            )
            stager = AciStager("default", lambda **_: stager_image, spawner, "test", times or StagerTimes(stop=3))
            stager.prepare(setup)
            pod = TestPod(stager, setup, stdin, begin)
            made.append(pod)
            return pod

        yield start
        for pod in made:
            pod.stager.cleanup(pod.directory, pod.setup.cgroup)
            pod.process.wait(10)
            pod.process.close()
        for cgroup in cgroups:
            assert cgroup.pids() == []
            cgroup.remove()
            assert not cgroup.exists()
