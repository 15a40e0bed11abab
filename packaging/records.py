"""Writes the records of a release, which later versions must read: ``tests/golden/records/VERSION``.

It runs pods of the installed Kurma in a network namespace of its own, copies what the state directory then has of
them, without files of images, and removes them. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from workspace import ROOT, Wrong, main, run, version

#: Where the records of releases are.
GOLDEN = "tests/golden/records"
#: What is copied of a state directory.
_RECORDS = (
    "pods/*/*.json",
    "pods/*/pod/status.json",
    "pods/*/stager/call.json",
    "pods/.ids/*",
    "pods/names/*",
    "images/images/*/image.json",
    "images/images/*/manifest",
    "images/layers/*/layer.json",
    "networks/names.json",
    "networks/pods/*",
    "plugins/**/*.json",
    "plugins/**/addresses/*",
    "plugins/**/ports/*",
)
#: Seconds until the pods have the states that are recorded.
_PATIENCE = 60.0
#: Runs the installed command, and gives its output.
Call = Callable[..., str]
_SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def write(kurma: Path, to: Path) -> None:
    """Writes the records of that ``kurma`` into a directory, in place of what it has.

    :raises Wrong: a command fails.
    """
    shutil.rmtree(to, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="kurma-records-") as scratch:
        place = Path(scratch)
        config = place / "kurma.json"
        config.write_text("{}")
        environment = {**os.environ, "KURMA_DIR": str(place / "state"), "KURMA_CONFIG": str(config)}

        def call(*words: object) -> str:
            return run(kurma, *words, env=environment)

        with _kurmad(kurma, place, environment), _pods_removed(call):
            _make_pods(call, place)
            _copy(place / "state", to / "state")
            uuids = sorted(call("list", "--quiet").split())
            expected = {
                "pods": [json.loads(call("show", uuid, "--format", "json")) for uuid in uuids],
                "images": json.loads(call("image", "list", "--format", "json")),
            }
            (to / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


@contextlib.contextmanager
def _pods_removed(call: Call) -> Iterator[None]:
    """Removes all pods at the end. After an error, that error is reported, and not one of the removal."""
    words = ("rm", "--all", "--force", "--yes")
    try:
        yield
    except BaseException:
        with contextlib.suppress(Wrong):
            call(*words)
        raise
    call(*words)


@contextlib.contextmanager
def _kurmad(kurma: Path, place: Path, environment: dict[str, str]) -> Iterator[None]:
    with (place / "kurmad.log").open("wb") as log:
        words = ["unshare", "--net", str(kurma), "daemon", "run"]
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _until((place / "state/run/kurmad.sock").exists, "kurmad")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _make_pods(call: Call, place: Path) -> None:
    root = place / "root/bin"
    root.mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "busybox")
    for name in ("sh", "sleep"):
        (root / name).symlink_to("busybox")
    image = place / "busybox.aci"
    call("image", "build", "--from-rootfs", root.parent, "--name", "example.com/busybox", "-o", image)

    def pod(verb: str, name: str, *options: str, script: str = _SLEEP, net: str = "none") -> None:
        words = ("--name", name, "--net", net, *options, "--exec", "/bin/sh", image, "--", "-c", script)
        call(verb, *(("-d",) if verb == "run" else ()), *words)

    pod("run", "web", "-p", "18080:80", "-v", f"{root}:/srv:ro", "--memory", "64Mi", net="default")
    pod("run", "again", "--restart", "always")
    pod("run", "users", "--userns", "auto")
    pod("run", "over", script="exit 3")
    pod("run", "killed")
    pod("prepare", "later")
    call("app", "add", "web", "--name", "side", "--start", "--exec", "/bin/sh", image, "--", "-c", _SLEEP)
    call("kill", "-s", "KILL", "again")
    os.kill(json.loads(call("show", "killed", "--format", "json"))["stagerPid"], signal.SIGKILL)

    def settled() -> bool:
        states = {one["name"]: one["state"] for one in json.loads(call("list", "--format", "json"))}
        again = json.loads(call("show", "again", "--format", "json"))["restart"]["count"]
        up = all(states[name] == "running" for name in ("web", "again", "users"))
        return up and again == 1 and (states["over"], states["killed"]) == ("stopped", "errored")

    _until(settled, "the pods")


def _copy(state: Path, to: Path) -> None:
    for pattern in _RECORDS:
        for file in state.glob(pattern):
            path = file.relative_to(state)
            if file.name == "lock" or any(part.startswith(".half-") for part in path.parts):
                continue  # prestarted pods end with the kurmad that made them
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to / path, follow_symlinks=False)


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise Wrong(f"cannot write the records: {what} did not come up within {_PATIENCE:g} s")
        time.sleep(0.05)


def _command() -> None:
    import sys

    kurma = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv/bin/kurma"
    write(kurma, ROOT / GOLDEN / version())
    print(ROOT / GOLDEN / version())


if __name__ == "__main__":
    main(_command)
