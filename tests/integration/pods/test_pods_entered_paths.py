"""No path is asked that an app can influence between its root and the drop of rights, by strace (H2)."""

import contextlib
import os

import pytest

from kurma_core.models.streams import Stdio
from kurma_core.pods.run.prestarted import prestart
from tests.integration import entering
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def app(script, annotation=None, **fields):
    handlers = [
        {"name": name, "exec": ["/bin/echo", name + fields["user"]]}
        for name in ("pre-start", "post-stop")
        if "user" in fields
    ]
    annotations = [] if annotation is None else [{"name": f"kurma.io/{annotation[0]}", "value": annotation[1]}]
    return {"app": shell(script, eventHandlers=handlers, **fields), "annotations": annotations}


@contextlib.contextmanager
def null():
    fd = os.open("/dev/null", os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def of_pods(found, house):
    """Without the spawner, which puts volumes and layers into the roots of stagers."""
    spawner = house.client.here.services.spawner._pid
    assert spawner
    return [window for pid, window in found() if pid != spawner]


@pytest.mark.parametrize("users", [None, "auto"])
def test_what_is_executed_in_a_pod(house, tmp_path, users):
    """Added apps: main, again, handlers, a terminal, input; enter, also at a terminal; cp and attach."""
    client = house.client
    apps = {
        "again": app("echo main; exec sleep 1000", ("restart", "always"), user="alice"),
        "typed": app("echo typed; exec sleep 1000", ("terminal", "true")),
        "reader": app("read line; echo $line", ("stdin", "true")),
    }
    with entering.traced(tmp_path) as found, house.running({}, userns=users) as pod:
        for name, each in apps.items():
            client.app_add(pod.uuid, house.request({name: each}), start=True)
        assert house.enter(pod.uuid, "echo", "entered", app="again")[:2] == (0, "entered\n")
        assert house.enter(pod.uuid, "echo", "in time", app="again", timeout=20)[:2] == (0, "in time\n")
        assert house.enter(pod.uuid, "echo", "typed in", app="again", tty=True)[:2] == (0, "typed in\r\n")
        assert house.enter(pod.uuid, "true", app="again", user="none")[0] == 125  # nor on the way to an error
        (tmp_path / "in").write_text("line\n")
        client.copy_in(pod.uuid, "again", str(tmp_path / "in"), "/tmp/copied")
        client.copy_out(pod.uuid, "again", "/tmp/copied", str(tmp_path / "out"))
        with null() as none, open(tmp_path / "out") as typed:
            assert client.attach(pod.uuid, "reader", Stdio(typed.fileno(), none, none)) == 0

        def running():
            return next(one.pid for one in client.pod(pod.uuid).apps if one.name == "again")

        before = running()
        os.kill(before, 9)
        until(lambda: running() not in (None, before), "the second execution")
    windows = of_pods(found, house)
    programs = [
        "pre-startalice",
        "post-stopalice",
        "echo main",
        "echo typed",
        "read line",
        '"entered"',
        '"in time"',
        '"typed in"',
    ]
    entering.check(windows, [*programs, '"/opt/stager/run"', '"/opt/stager/attach"'])
    assert sum("echo main" in window.program for window in windows) == 2


@pytest.mark.full
def test_what_is_executed_in_a_prestarted_pod(house, tmp_path):
    """A process of its own makes the first app's root there."""
    pods = house.client.here.pods
    with entering.traced(tmp_path) as found:
        prestarted = prestart(house.client.here.services, "default")
        _, pod = pods.prepare_to_start(house.request("echo first; exec sleep 1000"), new=prestarted)
        with null() as none:
            pods.start_prepared(pod, Stdio(none, none, none))
        pod.stop(force=True)
        pod.finish()
        pod.close()
        prestarted.discard()
    windows = of_pods(found, house)
    entering.check(windows, ["echo first"])
    (main,) = [window for window in windows if "echo first" in window.program]
    assert 'pivot_root(".", ".")' not in main.calls
