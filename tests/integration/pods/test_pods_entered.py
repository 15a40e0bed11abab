"""What a process of an app asks between the entry of the app's root and its program (X2, H2): nothing there.

Real attempts: the app has put something else in the place of ``/proc`` and ``/dev``, in a handler that ran before
in the same root.
"""

import contextlib
import json
import os
from pathlib import Path

import pytest

from kurma_core.errors import StagerError
from kurma_core.linux import capabilities
from tests.kit.house import both_ways
from tests.kit.images import archive, busybox_root, shell
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.vm]

POWERS = capabilities.DEFAULT_SET | {capabilities.BITS["CAP_SYS_ADMIN"]}
BOUND = f"CapBnd:\t{capabilities.mask(POWERS):016x}"

#: /p is what /proc was. The null device is a link to the root of whoever opens it.
FAKE = """
    mkdir /p && mount --rbind /proc /p && mount -t tmpfs t /proc && mkdir -p /proc/sys/kernel || exit 1
    echo 0 > /proc/sys/kernel/cap_last_cap
    mount -t tmpfs t /dev && ln -s / /dev/null && ln -s /p /dev/pts && ln -s /p/self/root/etc/passwd /dev/console
"""
SEEN = "grep CapBnd /p/self/status; stat -L -c %F:%t:%T /p/self/fd/0"
NULL = "character special file:1:3"


def faking(main, **fields):
    handlers = [("pre-start", FAKE + SEEN), ("post-stop", SEEN)]
    return shell(
        main,
        eventHandlers=[{"name": name, "exec": ["/bin/sh", "-c", script]} for name, script in handlers],
        **fields,
    )


@contextlib.contextmanager
def running(house, app, users):
    """A pod whose app has the default capabilities and CAP_SYS_ADMIN; nothing filters its system calls."""
    record = house.client.prepare(house.request({"main": app}, userns=users))
    with open(house.path(record, "pod.json")) as file:
        document = json.load(file)
    document["plans"]["main"]["capabilities"] = capabilities.names(POWERS)
    document["plans"]["main"].pop("seccomp", None)
    with open(house.path(record, "pod.json"), "w") as file:
        json.dump(document, file)
    with house.started(record) as pod:
        yield pod


@pytest.mark.parametrize("users", [None, "auto"])
def test_what_an_app_puts_in_the_place_of_proc_and_dev_is_not_asked(house, users):
    """Not for the last capability, nor for the null device: by handlers, main, enter, a restart."""
    app = {
        "app": faking(SEEN + "; echo up; exec sleep 1000"),
        "annotations": [{"name": "kurma.io/restart", "value": "always"}],
    }
    with running(house, app, users) as pod:

        def log(number):
            with contextlib.suppress(FileNotFoundError), open(house.path(pod, f"pod/logs/{number}")) as file:
                return [line.split(" ", 3)[3] for line in file.read().splitlines()]
            return []

        execution = [BOUND, NULL, BOUND, NULL, "up"]
        until(lambda: "up" in log("main.log"), "the first execution")
        assert log("main.log") == execution
        pid = until(lambda: house.client.pod(pod.uuid).apps[0].pid, "its process")
        code, out, err = house.enter(pod.uuid, "sh", "-c", SEEN)
        assert (code, out.splitlines()[0], err) == (0, BOUND, "")
        # A terminal is made by nothing that the app has put in place of /dev/pts.
        assert "its terminal cannot be made" in house.enter(pod.uuid, "true", tty=True)[2]
        os.kill(pid, 9)
        until(lambda: "up" in log("main.1.log"), "the second execution")
        assert log("main.log") == [*execution, BOUND, NULL]
        assert log("main.1.log") == execution


def test_a_console_is_not_where_a_link_leads(house):
    """A handler needs no power to put one there. The terminal does not cover what it leads to."""
    handler = {"name": "pre-start", "exec": ["/bin/ln", "-s", "/etc/passwd", "/dev/console"]}
    app = {
        "app": shell("true", eventHandlers=[handler]),
        "annotations": [{"name": "kurma.io/terminal", "value": "true"}],
    }
    with pytest.raises(StagerError) as caught, house.running({"main": app}):
        pass
    assert "its terminal cannot be its console: /dev/console: a symbolic link is there" in str(caught.value)


@both_ways
@pytest.mark.parametrize("place", ["proc", "dev"])
def test_a_link_in_the_place_of_the_systems_is_told_in_a_line(house, tmp_path, place):
    """And kurmad's log has no trace of it."""
    root = busybox_root(f"{tmp_path}/root")
    os.symlink("/tmp", f"{root}/{place}")
    path = archive(root, f"{tmp_path}/links.aci", f"example.com/link-{place}", app=shell("true"))
    image = house.client.here.images.fetch(path).id
    logged = Path(house.state, "kurmad.log")
    before = logged.stat().st_size if logged.exists() else 0
    with pytest.raises(StagerError) as caught:
        house.run({"main": {"image": image}})
    assert str(caught.value).count("\n") == 0
    assert f"/{place}: the image has a symbolic link there; make it a directory" in str(caught.value)
    if logged.exists():
        assert b"Traceback" not in logged.read_bytes()[before:]
