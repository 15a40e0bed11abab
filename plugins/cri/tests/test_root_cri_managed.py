"""Kubelet's pods on Kurma's command line: by namespace and name, and left alone (C4)."""

import pytest

pytestmark = pytest.mark.root


def test_kurma_shows_kubelets_pods_and_leaves_them(node):
    kurma = node.house.kurma
    sandbox = node.run(name="web")
    container = node.started(sandbox, "sh", "-c", "echo hello; sleep 1000")
    assert "default/web" in kurma.out("list")
    assert kurma.pod("default/web")["manager"] == "kubelet"
    assert kurma.out("enter", f"default/web/{container}", "echo", "inside") == "inside\n"
    for words in (("stop",), ("rm",), ("restart",)):
        done = kurma(*words, "default/web")
        assert done.returncode == 125
        assert "pod default/web: kubelet manages it" in done.stderr
    done = kurma("app", "stop", "default/web", container)
    assert "kubelet manages it" in done.stderr
    kurma.out("stop", "--force", "default/web")
    assert kurma.pod("default/web")["state"] != "running"
