"""How stage1 images are called, and what they find (Z1 to Z7)."""

import fcntl
import json
import os
import pty
import subprocess

import pytest

from tests.integration.stage1.conftest import BASIC, OF_APPS
from tests.kit.command import KURMA

pytestmark = pytest.mark.root

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"
#: The shortest pod that there is: it has run, and its app has ended with 3.
SHORT = "echo $$ > pid; echo 3 > stage1/rootfs/rkt/status/app; exit 3\n"


def run(kurma, stage1, *words, net="none", **more):
    return kurma("run", "--stager", stage1.stager, "--net", net, *words, kurma.image, **more)


def is_free(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.fixture(scope="module")
def short(stage1s):
    """One pod, that has run: its stage1, the command, the pod's UUID."""
    stage1 = stage1s.stage1(2, SHORT)
    done = run(
        stage1s,
        stage1,
        "--name",
        "short",
        "-e",
        "GIVEN=a b",
        "--dns",
        "192.0.2.1",
        "--hosts-entry",
        "192.0.2.2=db",
    )
    return stage1, done, stage1s.show("short")["uuid"]


def test_it_is_called_in_the_pods_directory(stage1s, short):
    """On the host's root, by the path in the pod, with its UUID last; its exit code is the command's (Z3)."""
    stage1, done, uuid = short
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "is not told where resolv.conf and hosts come from: it keeps to interface version 2" in done.stderr
    call, place = stage1.call("run"), f"{stage1s.pods}/run/{uuid}"
    assert call.words == ["--net=none", f"--local-config={place}/local-config", uuid]
    assert (call.cwd.strip(), call.program) == (place, f"{place}/stage1/rootfs/ex/run")


def test_it_holds_the_pods_lock(stage1s, short):
    """By a descriptor that it inherits; the lock is free once it has ended (Z2, Z3)."""
    stage1, _, uuid = short
    call = stage1.call("run")
    number = call.environment["RKT_LOCK_FD"]
    assert call.descriptors[number] == f"{stage1s.pods}/run/{uuid}"
    assert call.lock == "held\n"
    # A shell has its script open.
    others = {fd: what for fd, what in call.descriptors.items() if fd not in ("0", "1", "2", number)}
    assert all(what.endswith("/ex/run") for what in others.values()), others
    assert stage1s.place(uuid) == "run"
    assert is_free(f"{stage1s.pods}/run/{uuid}")
    assert set(call.environment) <= {
        "PATH",
        "PWD",
        "TERM",
        "LANG",
        "COLORTERM",
        "RKT_LOCK_FD",
        "SHLVL",
        "_",
        "OLDPWD",
    }


def test_what_is_in_the_pods_directory(stage1s, short):
    """Whole before it is called; and what it leaves is there as long as the pod (Z2, Z7)."""
    stage1, _, uuid = short
    rootfs = "stage1/rootfs"
    assert {
        *("pod", "pod-created", "pod.lck", "stage1/manifest", "stage1TreeStoreID"),
        *("appsinfo/app/manifest", "appsinfo/app/treeStoreID"),
        *(f"{rootfs}/opt/stage2/app/manifest", f"{rootfs}/opt/stage2/app/rootfs/bin/sh"),
        *(
            f"{rootfs}/rkt/status",
            f"{rootfs}/rkt/env/app",
            f"{rootfs}/etc/rkt-resolv.conf",
            f"{rootfs}/etc/rkt-hosts",
        ),
    } <= stage1.call("run").files
    place = stage1s.pods / "run" / uuid
    pod = json.loads((place / "pod").read_text())
    (app,) = pod["apps"]
    assert (pod["acKind"], app["name"]) == ("PodManifest", "app")
    assert app["app"]["exec"] == ["/bin/sh", "-c", "echo hello; exit 3"]
    environment = {each["name"]: each["value"] for each in app["app"]["environment"]}
    assert (environment["OF_IMAGE"], environment["GIVEN"]) == ("yes", "a b")
    image = json.loads((place / "appsinfo/app/manifest").read_text())
    assert (image["acKind"], image["name"]) == ("ImageManifest", "example.com/app")
    assert json.loads((place / "stage1/manifest").read_text())["name"].startswith("example.com/stage1-")
    assert app["image"]["id"] in (place / "appsinfo/app/treeStoreID").read_text()


def test_what_is_for_apps(stage1s):
    """Environment, name servers, names: files in stage1's own root, as it finds them (Z7)."""
    kept = "cp -r stage1/rootfs/rkt/env stage1/rootfs/etc/rkt-* ."
    stage1 = stage1s.stage1(1, f"{kept}\n{SHORT}")
    words = ("-e", "GIVEN=a b", "--dns", "192.0.2.1", "--hosts-entry", "192.0.2.2=db", "--hostname", "me")
    done = run(stage1s, stage1, "--name", "files", *words)
    place = stage1s.pods / "run" / stage1s.show("files")["uuid"]
    lines = (place / "env/app").read_text().splitlines()
    assert {"OF_IMAGE=yes", "GIVEN=a b"} <= set(lines)
    assert not any(line.startswith("AC_METADATA_URL") for line in lines)
    assert "nameserver 192.0.2.1\n" in (place / "rkt-resolv.conf").read_text()
    assert "192.0.2.2\tdb\n" in (place / "rkt-hosts").read_text()
    # Version 1 of the interface knows of no hostname.
    assert "is not told the hostname me: it keeps to interface version 1, and that came with 2" in done.stderr
    assert "AC_METADATA_URL" in done.stderr


def test_all_that_version_6_knows(stage1s):
    """And a network of CNI's, whose configuration it gets; ports by the names that it knows (Z4)."""
    stage1 = stage1s.stage1(6, "ln -s ready stage1/rootfs/rkt/supervisor-status\n" + SHORT, (*BASIC, *OF_APPS))
    network = {"name": "back", "plugin": "cni", "type": "bridge", "bridge": "back0"}
    config = {"debug": True, "lift": ["paths", "seccomp"], "ipc": "private"}
    section = {"driver": "rkt", "image": stage1.path, "config": config}
    stage1s.configure(stagers={"mine": section}, container_networks=[network])
    words = ("--stager", "mine", "--net", "back:IP=10.1.0.9", "--net", "default", "--name", "six", "-i")
    more = ("--hostname", "db", "--dns", "192.0.2.1", "-p", "8080:80")
    done = stage1s("run", *words, *more, stage1s.image, input="")
    assert done.returncode == 3, done.stderr
    uuid = stage1s.show("six")["uuid"]
    place = f"{stage1s.pods}/run/{uuid}"
    assert stage1.call("run").words == [
        "--debug",
        "--net=back:IP=10.1.0.9,default",
        "--interactive",
        f"--local-config={place}/local-config",
        "--hostname=db",
        "--dns-conf-mode=resolv=stage0,hosts=default",
        "--disable-paths",
        "--disable-seccomp",
        "--ipc=private",
        uuid,
    ]
    assert os.listdir(f"{place}/local-config/net.d") == ["back.conf"]
    with open(f"{place}/local-config/net.d/back.conf") as stream:
        assert json.load(stream).items() >= {"name": "back", "type": "bridge", "bridge": "back0"}.items()
    with open(f"{place}/pod") as stream:
        (port,) = json.load(stream)["ports"]
    assert (port["hostPort"], port["podPort"]["port"]) == (8080, 80)
    # It holds the port until stage1's `gc` has run.
    assert stage1s("rm", "six").returncode == 0


def test_the_callers_terminal(stage1s):
    """Descriptors 0, 1 and 2, its own; it is a child of the pod's owner (Z3)."""
    stage1 = stage1s.stage1(2, "echo to the terminal\n" + SHORT)
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)
    words = ("run", "-it", "--stager", stage1.stager, "--net", "none", stage1s.image)
    command = subprocess.Popen(
        [*KURMA, *words], env=stage1s.environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 4096)
        except OSError:
            break
    os.close(ours)
    assert command.wait(20) == 3, said
    call = stage1.call("run")
    assert [call.descriptors[fd] for fd in "012"] == [name] * 3
    assert int(call.parent) == command.pid
    assert "--interactive" in call.words
    assert b"to the terminal" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--stager", "rkt:{unpinned}"), "cannot run with host privilege: it is not signed"),
        (("--stager", "rkt:{app}"), "is not a stage1 image: it has no annotation coreos.com/rkt/stage1/run"),
        (("--stager", "rkt"), "stager rkt: rkt needs an image"),
        (("--stager", "rocket:{app}"), "no stager rocket:"),
        (("--stager", "default:{app}"), "default runs no images"),
        (("--stager", "rkt:/no.aci"), "kurma: stager rkt:/no.aci: its image: /no.aci: no such file\n"),
        (("--stager", "absent"), "kurma: stager absent: its image: /no.aci: no such file\n"),
        (("--stager", "unknown"), "kurma: stager unknown: its image: /no.aci: no such file\n"),
    ],
)
def test_what_is_not_run(stage1s, words, why):
    """Images that nobody vouches for (K5), and those that are none; nothing is left of the pod."""
    stage1 = stage1s.stage1(2, SHORT, pinned=False)
    stage1s.configure(stagers={"absent": {"driver": "rkt", "image": "/no.aci"}, "unknown": {"image": "/no.aci"}})
    stage1s.pin(stage1s.image)
    given = [word.format(unpinned=stage1.path, app=stage1s.image) for word in words]
    done = stage1s("run", *given, "--rm", "--net", "none", stage1s.image)
    assert done.returncode not in (0, 3)
    assert why in done.stderr
    assert not stage1.calls("run")
