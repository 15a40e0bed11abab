"""What an app is executed with, where, and why it is not (Y1 to Y3): main, handlers and commands in it alike."""

import os
import subprocess

import pytest

from kurma_core.errors import StagerError
from tests.kit.house import both_ways
from tests.kit.images import archive, busybox_root, shell
from tests.kit.waiting import until
from tests.linux.test_linux_execute import elf, made

pytestmark = pytest.mark.root

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOOP = "the script's interpreter /bad/loop"
#: Command, exit code, what is said.
REFUSED = {
    "missing": (["/no/such"], 127, "/no/such: not found"),
    "in-path": (["no-such"], 127, f"no-such: not found in {PATH}"),
    "dangling": (["/bad/dangling"], 127, "/bad/dangling: is a link to /no/such, which is missing"),
    "directory": (["/etc"], 126, "/etc: is a directory"),
    "plain": (["/etc/passwd"], 126, "/etc/passwd: is not executable (mode 0644)"),
    "forbidden": (
        ["/bad/private"],
        126,
        "/bad/private: user 1000 may not execute it (mode 0700, owner 0, group 0)",
    ),
    "hidden": (["/closed/tool"], 126, "/closed/tool: user 1000 may not search a directory on the way"),
    "empty": (["/bad/empty"], 126, "/bad/empty: is empty"),
    "text": (["/bad/text"], 126, "/bad/text: is neither an ELF program nor a script that begins with #!"),
    "script": (["/bad/script"], 126, "/bad/script: the script's interpreter /no/sh is missing"),
    "long": (
        ["/bad/long"],
        126,
        "/bad/long: its #! line is too long: an interpreter's name must end within 256 bytes",
    ),
    "loop": (["/bad/loop"], 126, f"/bad/loop: {f'{LOOP}: ' * 6}too many scripts that interpret each other"),
    "loader": (
        ["/bad/loader"],
        126,
        "/bad/loader: its ELF loader /lib/ld-no.so is missing (is a library missing from the image?)",
    ),
    "other": (["/bad/other"], 126, "/bad/other: is built for s390x, this machine is x86_64"),
    "volume": (["/vol/tool"], 126, "/vol/tool: lies on a noexec mount"),
    "words": (
        ["/bin/true", "x" * (200 << 10)],
        126,
        "/bin/true: its arguments and environment are too long for this kernel",
    ),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Path of an image archive with programs of all kinds that do not run."""
    top = tmp_path_factory.mktemp("bad")
    root = busybox_root(str(top / "root"))
    bad = top / "root" / "bad"
    made(bad / "private", b"#!/bin/sh\n", 0o700)
    made(top / "root" / "closed" / "tool", b"#!/bin/sh\n")
    os.chmod(f"{root}/closed", 0o700)
    made(bad / "empty")
    made(bad / "text", b"hello\n")
    made(bad / "script", b"#!/no/sh\n")
    made(bad / "long", b"#!/" + b"x" * 400)
    made(bad / "loop", b"#!/bad/loop\n")
    made(bad / "loader", elf(loader="/lib/ld-no.so"))
    made(bad / "other", elf(22))
    made(bad / "tool", b"#!/bin/sh\necho found\n")
    os.symlink("/no/such", bad / "dangling")
    os.symlink("loop", f"{root}/loop")
    os.mkdir(f"{root}/data/sub")
    return archive(root, str(top / "bad.aci"), "example.com/bad", app=shell("true"))


@pytest.fixture
def bad(house, image):
    return house.client.here.images.fetch(image).id


@pytest.fixture
def noexec(tmp_path):
    source = tmp_path / "noexec"
    source.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", source], check=True)
    made(source / "tool", b"#!/bin/sh\n")
    yield {"name": "vol", "kind": "host", "source": str(source)}
    subprocess.run(["umount", source], check=True)


def plain(argv, image, **fields):
    app = {
        "exec": argv,
        "user": "1000",
        "group": "100",
        "mountPoints": [{"name": "vol", "path": "/vol"}],
        **fields,
    }
    return {"image": image, "app": app}


def test_why_main_is_not_executed(house, bad, noexec):
    apps = {name: plain(argv, bad) for name, (argv, _, _) in REFUSED.items()}
    record, _ = house.run(apps, volumes=[noexec])
    found = {app.name: (app.exit_code, app.reason, app.message) for app in record.apps}
    assert found == {name: (code, "start-failed", said) for name, (_, code, said) in REFUSED.items()}
    assert record.exit_code == 127, "the first of the manifest"


@pytest.mark.parametrize("case", ["missing", "forbidden", "script", "loader", "volume", "words"])
def test_why_a_pre_start_handler_is_not_executed(house, bad, noexec, case):
    """What it was to prepare is not: the pod is not started, and the command's code is Kurma's own."""
    argv, _, said = REFUSED[case]
    app = plain(["/bin/true"], bad, eventHandlers=[{"name": "pre-start", "exec": argv}])
    with pytest.raises(StagerError) as caught:
        house.run({"main": app}, volumes=[noexec])
    assert str(caught.value).endswith(f"app main: its pre-start handler cannot be run: {said}")
    (record,) = house.client.pods()
    (status,) = house.client.pod(record.uuid).apps
    assert (status.exit_code, status.reason) == (125, "start-failed")
    assert status.message == f"its pre-start handler cannot be run: {said}"


def test_why_a_post_stop_handler_is_not_executed(house, bad, noexec):
    """It changes nothing of how the app ended, and it is told."""
    apps = {
        name: plain(["/bin/sh", "-c", "exit 3"], bad, eventHandlers=[{"name": "post-stop", "exec": argv}])
        for name, (argv, _, _) in REFUSED.items()
    }
    record, _ = house.run(apps, volumes=[noexec])
    assert {app.exit_code for app in record.apps} == {3}
    for name, (_, _, said) in REFUSED.items():
        assert f"app {name}: its post-stop handler cannot be run: {said}" in record.notes


@both_ways
def test_why_a_command_is_not_executed(house, bad, noexec):
    with house.running({"main": plain(["/bin/sleep", "1000"], bad)}, volumes=[noexec]) as pod:
        for argv, code, said in REFUSED.values():
            assert house.enter(pod.uuid, *argv) == (code, "", f"kurma: app main: {said}\n")
        # The command's own PATH, its empty and relative parts from the working directory.
        for path in ("/none:/bad", ":/none", "bad", "/closed:../bad"):
            options = {"environment": [("PATH", path)], "working_directory": "/bad" if path[0] == ":" else "/"}
            assert house.enter(pod.uuid, "tool", **options)[:2] == (0, "found\n"), path


# --- environment and working directory -------------------------------------------------------------------------

VARIABLES = ("PATH", "AC_APP_NAME", "container", "USER", "LOGNAME", "HOME", "SHELL", "OWN")
TELL = "env | grep -E '^({})=' | sort > /vol/{}"


def told(source, name):
    return dict(line.split("=", 1) for line in (source / name).read_text().splitlines())


def test_the_environment_of_main_handlers_and_commands(house, tmp_path):
    """Y1: one table for all of them; the pod's name for the app, though the image has another name."""
    (source := tmp_path / "told").mkdir()
    os.chmod(source, 0o777)

    def app(**fields):
        def tell(name):
            return TELL.format("|".join(VARIABLES), f"{fields['user']}.{name}")

        handlers = [{"name": word, "exec": ["/bin/sh", "-c", tell(word)]} for word in ("pre-start", "post-stop")]
        main = f"{tell('main')}; until [ -e /vol/go ]; do sleep 0.02; done"
        return shell(main, eventHandlers=handlers, mountPoints=[{"name": "vol", "path": "/vol"}], **fields)

    own = [
        {"name": name, "value": f"own {name}"} for name in ("PATH", "HOME", "SHELL", "USER", "AC_APP_NAME", "OWN")
    ]
    own[0]["value"] = "/bin:/own"
    apps = {
        "first": app(user="alice", group="users"),
        "second": app(user="4711", group="0"),
        "third": app(user="0", group="0", environment=[*own, {"name": "container", "value": "own container"}]),
    }
    expected = {
        "alice": ("first", {"USER": "alice", "LOGNAME": "alice", "HOME": "/", "SHELL": "/bin/sh", "PATH": PATH}),
        "4711": ("second", {"HOME": "/", "PATH": PATH}),
        "0": (
            "third",
            {
                "USER": "own USER",
                "LOGNAME": "root",
                "HOME": "own HOME",
                "SHELL": "own SHELL",
                "PATH": "/bin:/own",
                "OWN": "own OWN",
            },
        ),
    }
    with house.running(apps, volumes=[{"name": "vol", "kind": "host", "source": str(source)}]) as pod:
        until(lambda: all((source / f"{user}.main").exists() for user in expected), "all apps run")
        for user, (name, _) in expected.items():
            script = TELL.format("|".join(VARIABLES), f"{user}.enter")
            assert house.enter(pod.uuid, "/bin/sh", "-c", script, app=name)[0] == 0
        command = house.enter(
            pod.uuid, "/bin/busybox", "env", app="third", environment=[("PATH", "/x"), ("A", "b")]
        )
        assert {"PATH=/x", "A=b", "OWN=own OWN", "AC_APP_NAME=third", "container=kurma"} <= set(
            command[1].split("\n")
        )
        (source / "go").touch()
        until(lambda: not pod.stager.alive(), "the apps have ended")
    for user, (name, variables) in expected.items():
        for process in ("pre-start", "main", "post-stop", "enter"):
            assert told(source, f"{user}.{process}") == {**variables, "AC_APP_NAME": name, "container": "kurma"}


@pytest.mark.parametrize(
    ("directory", "user", "said"),
    [
        ("/none", "0", "does not exist"),
        ("/vol/none", "0", "does not exist"),
        ("/data/sub", "0", "does not exist"),
        ("/etc/passwd", "0", "is not a directory"),
        ("/closed", "1000", "may not be entered by user 1000"),
        ("/loop", "0", "leads over too many symbolic links"),
    ],
)
def test_a_working_directory_that_is_none(house, tmp_path, image, bad, directory, user, said):
    """Y2: it is looked for when volumes are mounted; the command and the app's status name it."""
    (tmp_path / "source").mkdir()
    points = [{"name": "vol", "path": "/data"}, {"name": "vol", "path": "/vol"}]
    app = shell("true", workingDirectory=directory, mountPoints=points)
    app["user"] = user
    with pytest.raises(StagerError) as caught:
        house.run(
            {"main": {"image": bad, "app": app}},
            volumes=[{"name": "vol", "kind": "host", "source": str(tmp_path / "source")}],
        )
    message = f"the working directory {directory} {said}"
    assert str(caught.value).endswith(f"app main: {message}")
    (record,) = house.client.pods()
    (status,) = house.client.pod(record.uuid).apps
    assert (status.exit_code, status.reason, status.message) == (125, "start-failed", message)


def test_a_working_directory_that_a_volume_brings(house, tmp_path):
    (tmp_path / "source" / "deep").mkdir(parents=True)
    app = shell("pwd -P", workingDirectory="/data/deep", mountPoints=[{"name": "vol", "path": "/data"}])
    handler = {"name": "pre-start", "exec": ["/bin/sh", "-c", "pwd -P > pre-start"]}
    _record, output = house.run(
        {"main": {**app, "eventHandlers": [handler]}, "root": shell("pwd")},
        volumes=[{"name": "vol", "kind": "host", "source": str(tmp_path / "source")}],
    )
    assert sorted(output.split()) == ["/", "/data/deep"]
    assert (tmp_path / "source" / "deep" / "pre-start").read_text() == "/data/deep\n"
