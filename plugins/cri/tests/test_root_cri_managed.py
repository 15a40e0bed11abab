"""Kubelet's pods on Kurma's command line: by namespace and name, and left alone (C4)."""

import pytest
from kurma_cri.proto import runtime_pb2 as cri

from tests.kit.waiting import until

pytestmark = pytest.mark.root


def test_kurma_shows_kubelets_pods_and_leaves_them(node):
    kurma = node.house.kurma
    sandbox = node.run(name="web")
    container = node.started(sandbox, "sh", "-c", "echo hello; sleep 1000")
    assert "default/web" in kurma.out("list")
    assert "kubelet" in kurma.out("show", "default/web")
    until(lambda: kurma.out("logs", "default/web") == "hello\n", "its log")
    assert "default/web" in kurma.out("stats", "--no-stream", "default/web")
    assert kurma.pod("default/web")["manager"] == "kubelet"
    assert kurma.out("enter", f"default/web/{container}", "echo", "inside") == "inside\n"
    web = ("default/web", container)
    for words in (
        *((command, "default/web") for command in ("stop", "rm", "restart", "start", "kill")),
        ("kill", f"default/web/{container}"),
        ("annotate", "default/web", "example.com/owner=lab"),
        *(("app", command, *web) for command in ("start", "stop", "rm", "reopen-log")),
        ("app", "update", "--memory", "64Mi", *web),
        ("app", "add", "default/web", node.house.image),
    ):
        done = kurma(*words)
        assert done.returncode == 125, (words, done.stderr)
        assert "pod default/web: kubelet manages it" in done.stderr
        assert "--force" in done.stderr
    assert node.status(container).state == cri.CONTAINER_RUNNING


def test_against_kubelet(node):
    """``--force`` does it all the same; with ``--timeout``, the apps get their stop signal first."""
    kurma = node.house.kurma
    sandbox = node.run(name="web")
    script = "trap 'exit 7' TERM; trap 'echo asked' USR1; echo up; while :; do sleep 0.05; done"
    one, two, three = (node.started(sandbox, "sh", "-c", script, name=name) for name in ("one", "two", "three"))
    for container in (one, two, three):
        until(lambda: node.output(container) == ["up"], "its output")  # noqa: B023 - at once
    kurma.out("kill", "--force", "--signal", "USR1", f"default/web/{one}")
    until(lambda: node.output(one) == ["up", "asked"], "its signal")
    kurma.out("app", "stop", "--force", "--timeout", "100s", "default/web", one)
    kurma.out("app", "stop", "--force", "default/web", two)
    assert node.status(one).exit_code == 7
    assert node.status(two).state == cri.CONTAINER_EXITED
    kurma.out("stop", "--force", "--timeout", "100s", "default/web")
    assert kurma.pod("default/web")["state"] != "running"
    assert node.status(three).exit_code == 7


def test_garbage_collection_leaves_kubelets_pods(node):
    """Also ended ones: kubelet reads their statuses, and removes them itself."""
    kurma = node.house.kurma
    ended, running = node.run(), node.run()
    container = node.started(ended, "sh", "-c", "exit 7")
    node.wait_exited(container)
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=ended))
    none = ("--grace-period", "0s")
    for words in (("gc", *none), ("image", "gc", *none), ("system", "prune", "--force", "--all")):
        kurma.out(*words)
    assert node.status(container).exit_code == 7
    states = {one.id: one.state for one in node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items}
    assert states == {ended: cri.SANDBOX_NOTREADY, running: cri.SANDBOX_READY}
    again = node.started(running, "true")
    assert node.wait_exited(again).exit_code == 0, "its image is there"
