"""Health checks of pods under a stage1, which cannot end a command: by requests and connections alone (21)."""

import pytest

from tests.kit.waiting import until

pytestmark = pytest.mark.root


@pytest.fixture
def running(stage1s):
    """Runs a pod in the foreground until the test ends."""
    begun = []

    def run(*words):
        command = stage1s.popen("run", "--name", "checked", *words)
        begun.append(command)
        until(lambda: "running" in stage1s("list").stdout or command.poll() is not None)
        assert command.poll() is None, command.communicate()

    yield run
    stage1s("stop", "--force", "checked")
    for command in begun:
        command.communicate(timeout=60)
    assert stage1s("rm", "checked").stderr == ""


@pytest.mark.parametrize("words", [(), ("--userns", "auto")], ids=["plain", "userns"])
def test_its_network_namespace(stage1s, running, exported, words):
    stage1s.pin(exported)
    script = "cd /tmp; echo well > x; exec httpd -f -p 127.0.0.1:18174"
    check = ("--health-http", "http://localhost:18174/x")
    image = ("--exec", "/bin/sh", stage1s.image, "--", "-c", script)
    running("--stager", f"rkt:{exported}", "--net", "none", *words, *check, *image)
    passed = until(lambda: (done := stage1s("healthcheck", "run", "checked")).returncode == 0 and done)
    assert passed.stdout == "HTTP 200 from http://127.0.0.1:18174/x\nwell\n"


def test_a_stage1_that_keeps_to_the_network_of_the_host(stage1s, running):
    """The check would reach servers of the host."""
    stage1 = stage1s.stage1(2, "echo $$ > pid; exec sleep 1000\n")
    running("--stager", stage1.stager, "--net", "none", "--health-tcp", "22", stage1s.image)
    done = stage1s("healthcheck", "run", "checked")
    assert done.returncode == 125
    assert "is in the host's network namespace" in done.stderr
