"""The default stager on a machine that has none yet: built by itself, once, signed with the machine's key (H1)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.kit.command import Kurma
from tests.kit.images import archive
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def ways_in(kurma: Kurma, image: str) -> list[str]:
    """How the image came in, each time."""
    return [way["trust"] for way in kurma.json("image", "show", image)["provenance"]]


def stagers(kurma: Kurma) -> list[str]:
    return [one["id"] for one in kurma.json("image", "list") if one["name"] == "kurma.io/stager/default"]


@pytest.mark.full
def test_several_at_once_build_it_once(fresh: Kurma) -> None:
    """At first need, by whoever comes first; the others wait for it and take it."""
    fresh.out("image", "fetch", fresh.image)
    words = ("run", "--rm", "--net", "none", fresh.image, "--", "-c", "exit 3")
    began = time.monotonic()
    runs = [fresh.popen(*words) for _ in range(3)]
    for run in runs:
        said = run.communicate(timeout=60)
        assert run.returncode == 3, said
    assert time.monotonic() - began < 30
    (image,) = stagers(fresh)
    assert ways_in(fresh, image) == ["built"]
    assert fresh.out("stager", "build", "default").strip() == image
    assert ways_in(fresh, image) == ["built"]


def test_the_machines_key(fresh: Kurma) -> None:
    """Made here, root's alone, and what is trusted unless the configuration says otherwise."""
    image = fresh.out("stager", "build", "default").strip()
    keys = fresh.state / "keys"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    secrets = list((keys / "private-keys-v1.d").iterdir())
    assert secrets
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert {path.stat().st_uid for path in [keys, *secrets]} == {0}
    (way,) = fresh.json("image", "show", image)["provenance"]
    assert way["fingerprint"] is not None
    # The same key the next time; another machine has another.
    again = fresh.out("stager", "build", "default", "--force").strip()
    assert again == image
    assert {way["fingerprint"] for way in fresh.json("image", "show", image)["provenance"]} == {way["fingerprint"]}
    other = Kurma(fresh.state.parent / "other", fresh.config, fresh.image)
    assert other.out("stager", "build", "default").strip() == image, "the same interpreter makes the same image"
    (theirs,) = other.json("image", "show", image)["provenance"]
    assert theirs["fingerprint"] != way["fingerprint"]
    stranger = fresh.configured(fresh.state.parent / "stranger.json", trusted_host_keys=[theirs["fingerprint"]])
    done = stranger.run("exit 3")
    assert done.returncode == 125
    assert "does not list its signer" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("after", [0.1, 0.3, 0.6, 1.0])
def test_a_build_that_is_killed(fresh: Kurma, after: float) -> None:
    """At any moment: the next one builds it, and what the first one left is nothing but for `image gc`."""
    with fresh.popen("stager", "build", "default", start_new_session=True) as build:
        time.sleep(after)
        os.killpg(build.pid, signal.SIGKILL)
    assert fresh.run("exit 3").returncode == 3
    (image,) = stagers(fresh)
    fresh.out("image", "verify", image)
    fresh.out("image", "gc")
    assert list((fresh.state / "images" / "tmp").iterdir()) == []
    assert stagers(fresh) == [image]


def test_a_state_directory_that_cannot_be_written(fresh: Kurma) -> None:
    """Told in one line where there is no stager yet; where there is one, it is found good without a write."""
    fresh.out("stager", "build", "default")
    subprocess.run(["mount", "--bind", fresh.state, fresh.state], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", fresh.state], check=True)
        done = fresh.run("exit 3")
        assert done.returncode == 125
        assert "read-only file system" in done.stderr.lower()
        done = fresh("stager", "build", "default", "--force")
        assert done.returncode == 125
        assert "read-only file system" in done.stderr.lower()
        assert "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", fresh.state], check=True)
    assert fresh.run("exit 3").returncode == 3


def test_mounts_stay_inside_and_outside(kurma: Kurma, tmp_path: Path) -> None:
    """G1: what the stager mounts is not seen by the host, nor what the host mounts later by the stager."""
    place = tmp_path / "volume"
    place.mkdir()
    words = ("--name", "walls", "-v", f"{place}:/data", kurma.image, "--", "-c", "sleep 1000")
    run = kurma.popen("run", "--rm", "--net", "none", *words)
    try:
        until(lambda: any(pod["state"] == "running" for pod in kurma.json("list")))
        pid = kurma.pod("walls")["stagerPid"]
        assert os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        enter = ["nsenter", f"--mount=/proc/{pid}/ns/mnt"]
        with open(f"/proc/{pid}/mountinfo") as file:
            inside = [line.split() for line in file]
        assert all("shared:" not in field for fields in inside for field in fields[6 : fields.index("-")])
        # pivot_root: the namespace's own root is the stager's, there is no other to go to.
        assert os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat(f"/proc/{pid}/root/.."))
        listing = subprocess.run(
            [*enter, "/opt/stager/bin/python3", "-ISc", "import os; print(*os.listdir('/'))"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert {"manifest", "layers", "volumes"} <= set(listing.stdout.split())
        assert "home" not in listing.stdout.split()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        try:
            with open(f"/proc/{pid}/mountinfo") as file:
                assert len([line.split() for line in file]) == len(inside)
        finally:
            subprocess.run(["umount", place], check=True)
        with open("/proc/self/mountinfo") as file:
            assert not any("/layers/sha512-" in line.split()[4] for line in file)
    finally:
        kurma("stop", "walls")
        run.communicate(timeout=30)


@pytest.mark.full
def test_a_copied_state_directory(fresh: Kurma, tmp_path: Path) -> None:
    """As one restored from a backup, or moved to another disk: each image runs, the stager's included (H1)."""
    (tmp_path / "upper/srv").mkdir(parents=True)
    (tmp_path / "upper/srv/text").write_text("upper\n")
    app = {"exec": ["/bin/cat", "/srv/text"], "user": "0", "group": "0"}
    below = [{"imageName": "example.com/busybox"}]
    upper = str(tmp_path / "upper.aci")
    archive(str(tmp_path / "upper"), upper, "example.com/upper", app=app, dependencies=below)
    lower, upper = (fresh.out("image", "fetch", image).strip() for image in (fresh.image, upper))
    words = ("run", "--rm", "--net", "none")
    assert fresh.out(*words, upper) == "upper\n"
    copy = Kurma(tmp_path / "copy", fresh.config, fresh.image)
    subprocess.run(["cp", "-a", fresh.state, copy.state], check=True)
    before = [one["id"] for one in fresh.json("image", "list")]
    for verify in ((), ("--verify",)):
        assert copy.out(*words, *verify, lower, "--", "-c", "echo lower") == "lower\n"
        assert copy.out(*words, *verify, upper) == "upper\n"
    assert [one["id"] for one in copy.json("image", "list")] == before
    (stager,) = stagers(copy)
    assert ways_in(copy, stager) == ["built"], "it is the copied one"
