"""What clients of kurmad's API, who have lent it nothing, see of what a stage1 prints (Z3, Z8)."""

import contextlib
import http.client
import json
import socket
import subprocess
from types import SimpleNamespace

import pytest

from kurma_core.api.wire import ERROR, OUTPUT
from tests.integration.daemon.test_root_streams import Raw
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: What it says last is in colours, and longer than anybody reads.
SAYS = r"""echo first >&2; head -c 3000 /dev/zero | tr '\0' x; printf '\n\033[31mno\rluck\033[0m\n'; """


SCRIPTS = {
    "exits": (2, SAYS + "exit 254\n"),
    "hangs": (2, SAYS + "sleep 1000\n"),
    "hangs, of version 5": (5, SAYS + "sleep 1000\n"),
    "reads": (2, "echo early; echo $$ > pid; read x; echo got $x; echo late >&2; exit 4\n"),
    "complains": (2, "echo no luck >&2; sleep 1000\n"),
}


@pytest.fixture(scope="module")
def images(stage1s):
    """By name; made before a daemon reads which are pinned."""
    return {name: stage1s.stage1(version, script) for name, (version, script) in SCRIPTS.items()}


def listens(path):
    """Who ended before may have left its name."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


@contextlib.contextmanager
def serving(kurma, start_timeout="60s"):
    kurma.configure(start_timeout=start_timeout)
    path = str(kurma.directory / "state/run/kurmad.sock")
    with open(kurma.directory / "kurmad.log", "ab") as stream:
        process = subprocess.Popen([*KURMA, "daemon", "run"], env=kurma.environment, stderr=stream)
    try:
        until(lambda: listens(path), "kurmad")
        yield SimpleNamespace(socket=path)
    finally:
        process.terminate()
        assert process.wait(20) == 0


def body(kurma, stage1):
    app = {"name": "app", "image": kurma.image}
    return {"pod": {"apps": [app], "networks": ["none"]}, "stager": stage1.stager, "ephemeral": True}


def asked(daemon, path, value):
    """Status and answer of a POST."""
    connection = http.client.HTTPConnection("kurmad")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(60)
        connection.sock.connect(daemon.socket)
        connection.request("POST", path, json.dumps(value), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("exits", "the stager ended with status 254: "),
        ("hangs", "stage1 does not say within 5 s that its pod runs: neither pid nor ppid in "),
        ("hangs, of version 5", "stage1 does not say within 5 s that its pod runs: neither pid nor ppid in "),
    ],
)
def test_a_pod_that_does_not_come_up(stage1s, images, name, why):
    """Its error has the last that its stage1 has printed: of bearable length, and fit for any terminal."""
    stage1 = images[name]
    with serving(stage1s, "60s" if name == "exits" else "5s") as daemon:
        status, answer = asked(daemon, "/v1/pods?start=true", body(stage1s, stage1))
        shown = stage1s("run", "-d", "--rm", "--stager", stage1.stager, "--net", "none", stage1s.image)
    if name == "exits":
        assert (status, answer["state"], answer["exitCode"]) == (200, "errored", 254)
        said = answer["reason"]
    else:
        assert status >= 400
        said = answer["error"]["message"]
    assert said.startswith(why)
    assert said.endswith(" / [31mno / luck [0m"), said
    assert said.isprintable()
    assert len(said) < 1500
    assert shown.returncode == (254 if name == "exits" else 125)
    assert said.rpartition(" / ")[2] in shown.stderr


def test_a_pod_in_front_by_frames(stage1s, images):
    """All that it prints comes as output and error, before the pod is up and after."""
    with serving(stage1s) as daemon:
        client = Raw(daemon, "/v1/pods/run", body(stage1s, images["reads"]))
        client.until(output=b"early\n")
        client.until("running")
        client.type(b"typed\n")
        record = client.until("result")["value"]
        client.close()
    assert (record["state"], record["exitCode"]) == ("stopped", 4)
    assert (client.got[OUTPUT], client.got[ERROR]) == (b"early\ngot typed\n", b"late\n")


def test_a_pod_in_front_that_does_not_come_up(stage1s, images):
    with serving(stage1s, "5s") as daemon:
        client = Raw(daemon, "/v1/pods/run", body(stage1s, images["complains"]))
        error = client.until("error")["error"]
        client.close()
    assert error["message"].startswith("stage1 does not say within 5 s")
    assert client.got[ERROR] == b"no luck\n"
