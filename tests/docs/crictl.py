"""A stand-in for crictl, which Debian does not have: the commands that docs/howto/kubernetes.md types.

It does what crictl does with the same words, by the same calls of the service.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf import json_format
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services

CONFIG = "/etc/crictl.yaml"


class Crictl:
    """:param config: ``/etc/crictl.yaml``."""

    def __init__(self, config: dict[str, Any]) -> None:
        channel = grpc.insecure_channel(config["runtime-endpoint"], [("grpc.default_authority", "localhost")])
        self.runtime: Any = services.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
        self.images: Any = services.ImageServiceStub(channel)  # type: ignore[no-untyped-call]

    def info(self, arguments: argparse.Namespace) -> None:
        answer = self.runtime.Status(cri.StatusRequest(verbose=True))
        print(json.dumps(json_format.MessageToDict(answer), indent=2))

    def pull(self, arguments: argparse.Namespace) -> None:
        request = cri.PullImageRequest(image=cri.ImageSpec(image=arguments.words[0]))
        print("Image is up to date for", self.images.PullImage(request).image_ref)

    def runp(self, arguments: argparse.Namespace) -> None:
        print(self._runp(arguments.words[0]))

    def run(self, arguments: argparse.Namespace) -> None:
        container, pod = arguments.words
        sandbox = self._runp(pod)
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox,
            config=json_format.ParseDict(_read(container), cri.ContainerConfig()),
            sandbox_config=json_format.ParseDict(_read(pod), cri.PodSandboxConfig()),
        )
        id = self.runtime.CreateContainer(request).container_id
        self.runtime.StartContainer(cri.StartContainerRequest(container_id=id))
        print(id)

    def _runp(self, pod: str) -> str:
        config = json_format.ParseDict(_read(pod), cri.PodSandboxConfig())
        answer = self.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config))
        return str(answer.pod_sandbox_id)

    def pods(self, arguments: argparse.Namespace) -> None:
        for one in self.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items:
            print(one.id)

    def ps(self, arguments: argparse.Namespace) -> None:
        for one in self.runtime.ListContainers(cri.ListContainersRequest()).containers:
            if arguments.all or one.state == cri.CONTAINER_RUNNING:
                print(one.id)

    def exec(self, arguments: argparse.Namespace) -> None:
        id, *command = arguments.words
        answer = self.runtime.ExecSync(cri.ExecSyncRequest(container_id=id, cmd=command))
        sys.stdout.buffer.write(answer.stdout)
        sys.stderr.buffer.write(answer.stderr)
        sys.exit(answer.exit_code)

    def rmp(self, arguments: argparse.Namespace) -> None:
        for one in self.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items:
            if arguments.all or one.id in arguments.words:
                self.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=one.id))
                self.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=one.id))
                print(f"Removed sandbox {one.id}")


def _read(file: str) -> Any:
    return json.loads(Path(file).read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="crictl")
    parser.add_argument("command", choices=["info", "pull", "runp", "run", "pods", "ps", "exec", "rmp"])
    parser.add_argument("--no-pull", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("-a", "--all", action="store_true")
    parser.add_argument("-f", "--force", action="store_true")
    parser.add_argument("words", nargs="*")
    arguments, rest = parser.parse_known_args()
    arguments.words += rest
    try:
        getattr(Crictl(yaml.safe_load(Path(CONFIG).read_text())), arguments.command)(arguments)
    except grpc.RpcError as error:
        sys.exit(f"crictl: {error.code()}: {error.details()}")  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
