"""What protects every app by default is there, or the pod is refused (X1, X4, X5)."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import KURMA, Kurma
from tests.kit.waiting import until

pytestmark = pytest.mark.root

Sleeping = Callable[..., subprocess.Popen[str]]
#: How many filters of system calls there are: the stager's own, of keyrings, and the profile.
FILTERS = "sed -n 's/^Seccomp_filters:.//p' /proc/self/status"
ALL = ("kurma.io/pids-limit", "kurma.io/seccomp-profile", "os/linux/capabilities-remove-set")
TYPO = {"plugins": {"isolators": {"linux": {"config": {"typo": 1}}}}}
HOUSE = {"name": "house", "plugin": "cni", "type": "ptp", "default": True}
OFF = {"plugins": {"isolators": {"linux": {"enabled": False}}}}
#: The key, and what it is in a file.
UNREQUIRED = {"required_isolators": dict.fromkeys(ALL, False)}


@pytest.fixture
def configure(kurma: Kurma, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``configure(KEY=VALUE, …)``: the command's configuration; its file."""
    file = tmp_path / "kurma.json"
    monkeypatch.setitem(kurma.environment, "KURMA_CONFIG", str(file))

    def write(**values: Any) -> Path:
        file.write_text(json.dumps(values))
        return file

    write()
    return write


def run(kurma: Kurma, *options: str, script: str = FILTERS) -> subprocess.CompletedProcess[str]:
    return kurma("run", "--net", "none", *options, "--exec", "/bin/sh", kurma.image, "--", "-c", script)


@pytest.fixture
def uninstalled(tmp_path: Path) -> tuple[list[str], str]:
    """Kurma without the distribution kurma-isolators-linux: the command, and the PYTHONPATH that it needs."""
    place = tmp_path / "site"
    place.mkdir()
    paths = [str(place)]
    for entry in sorted(Path(sysconfig.get_paths()["purelib"]).iterdir()):
        if entry.name.startswith("kurma_isolators_linux"):
            continue
        if entry.suffix == ".pth":
            lines = entry.read_text().splitlines()
            paths += [line for line in lines if line.startswith("/") and not line.endswith("isolators_linux")]
        else:
            (place / entry.name).symlink_to(entry)
    return [sys.executable, "-S", "-m", "kurma_core.cli.main"], ":".join(paths)


def refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    """With one line, and a hint."""
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (125, "")
    assert error.startswith(f"kurma: cannot run app busybox without {', '.join(ALL)}, which Kurma's configuration")
    assert why in error
    assert hint.startswith("  hint: ")
    assert f"`required_isolators: {{{', '.join(f'{name}: false' for name in ALL)}}}`" in hint


@pytest.mark.full
def test_a_plugin_that_does_not_work_is_no_way_around_its_defaults(
    kurma: Kurma,
    configure: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    uninstalled: tuple[list[str], str],
) -> None:
    before = kurma.out("list")
    assert run(kurma).stdout == "2\n"
    file = configure(**TYPO)
    for strict in ((), ("--strict-isolators",)):
        configure(**TYPO)
        refused(run(kurma, *strict), f"{file}: plugins.isolators.linux.config.typo: unknown key; ")
        configure(**OFF)
        refused(run(kurma, *strict), f"isolator plugin 'linux' is disabled in {file}")
        configure()
        words, path = uninstalled
        environment = {**kurma.environment, "PYTHONPATH": path}
        done = subprocess.run(
            [*words, "run", "--net", "none", *strict, kurma.image],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=60,
        )
        refused(done, "no isolator plugin is installed")
    # An isolator that the user typed is refused for its own sake.
    configure(**OFF, **UNREQUIRED)
    done = run(kurma, "--memory", "64Mi")
    assert done.returncode == 125
    assert done.stderr.startswith(
        "kurma: cannot enforce isolator resource/memory of app busybox: no installed plugin looks after it; "
        f"isolator plugin 'linux' is disabled in {file}\n"
    )
    assert kurma.out("list").count("\n") == before.count("\n") + 1, "the first alone"


def test_the_configuration_may_do_without_and_that_is_shown(kurma: Kurma, configure: Callable[..., Path]) -> None:
    file = configure(**OFF, **UNREQUIRED)
    done = run(kurma, "--name", "bare")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    rows = [line for line in kurma.out("show", "bare").splitlines() if line.startswith(ALL)]
    assert len(rows) == 3
    assert all("ignored, default" in row and f"'linux' is disabled in {file}" in row for row in rows)
    info = json.loads(kurma.out("info", "--format", "json"))
    assert (info["requiredIsolators"], info["notRequiredIsolators"]) == ([], list(ALL))
    # They are required again: what was made without is not started.
    configure(**OFF)
    done = kurma("start", "bare")
    assert done.returncode == 125
    assert f"cannot run app busybox without {', '.join(ALL)}, which" in done.stderr
    assert "the pod was made without" in done.stderr
    # One of them; the plugin works, so that all are there.
    configure(required_isolators={ALL[0]: False})
    assert run(kurma, "--name", "all").stdout == "2\n"
    assert kurma.out("show", "all").count("enforced, default") >= 3
    info = json.loads(kurma.out("info", "--format", "json"))
    assert (info["requiredIsolators"], info["notRequiredIsolators"]) == (list(ALL[1:]), [ALL[0]])
    kurma.out("rm", "bare")


@pytest.mark.full
def test_an_app_that_is_added_and_one_that_chose_its_own(
    kurma: Kurma, configure: Callable[..., Path], sleeping: Sleeping
) -> None:
    sleeping("host")
    configure(**TYPO)
    done = kurma("app", "add", "host", "--name", "more", kurma.image)
    assert done.returncode == 125
    assert "cannot run app more without" in done.stderr
    configure()
    kurma.out("app", "add", "host", "--name", "more", kurma.image)
    configure(required_isolators={"resource/memory": True})
    done = kurma("app", "start", "host", "more")
    assert "cannot run app more without resource/memory" in done.stderr
    for isolator, filters in (("os/linux/privileged=true", 0), ('kurma.io/seccomp-profile="none"', 1)):
        assert run(kurma, "--memory", "64Mi", "--isolator", isolator).stdout == f"{filters}\n"
    done = run(kurma)
    assert "without resource/memory, which Kurma's configuration requires: nothing asks for it" in done.stderr


def test_a_reload_takes_over_nothing_of_what_config_check_refuses(
    kurma: Kurma, configure: Callable[..., Path], tmp_path: Path
) -> None:
    daemon = {"daemon": {"prestarted_stagers": 0}}
    file = configure(**daemon)
    log = tmp_path / "kurmad.log"
    with log.open("wb") as stream:
        kurmad = subprocess.Popen([*KURMA, "daemon", "run"], env=kurma.environment, stderr=stream)
    try:
        until(lambda: "serves" in log.read_text(), "kurmad")
        configure(**daemon, **TYPO, stop_timeout=7)
        (said,) = kurma("--host", "local", "config", "check").stderr.splitlines()
        assert said.startswith(f"kurma: {file}: plugins.isolators.linux.config.typo: unknown key; ")
        kurmad.send_signal(1)
        until(lambda: "kept the old configuration" in log.read_text(), "the refusal")
        assert f"kept the old configuration: {said.removeprefix('kurma: ')}" in log.read_text()
        # The command's own configuration is the wrong one: it goes by way of the daemon all the same.
        done = kurma(
            "run", "--rm", "--name", "web", "--net", "none", "--exec", "/bin/sh", kurma.image, "--", "-c", FILTERS
        )
        assert done.stdout == "2\n", done.stderr
        configure(**daemon, stop_timeout=7)
        kurmad.send_signal(1)
        until(lambda: "the configuration was read again: new: stop_timeout" in log.read_text(), "the reload")
    finally:
        kurmad.terminate()
        assert kurmad.wait(20) == 0


def test_config_check_finds_a_plugin_that_pods_need_and_is_disabled(
    kurma: Kurma, configure: Callable[..., Path]
) -> None:
    """Networks of the default configuration, the isolators that must be enforced, and pods on record."""
    kurma.out("prepare", "--net", "none", "--renderer", "copy", "--name", "old", kurma.image)
    off = {"enabled": False}
    file = configure(
        plugins={"renderers": {"copy": off}, "networks": {"bridge": off, "lo": off}, "isolators": {"linux": off}}
    )
    done = kurma("config", "check")
    assert done.returncode == 125
    lines = [line for line in done.stderr.splitlines() if not line.startswith("  hint")]
    unprotected = f"required_isolators: apps would lack {', '.join(ALL)}: "
    assert lines == [
        f"kurma: container_networks.lo.plugin: network plugin 'lo' is disabled in {file}",
        f"kurma: container_networks.default.plugin: network plugin 'bridge' is disabled in {file}",
        f"kurma: {unprotected}no installed plugin looks after it; isolator plugin 'linux' is disabled in {file}",
        f"kurma: pod old: renderer plugin 'copy' is disabled in {file}",
    ]
    kurma.out("rm", "old")
    configure(plugins={"networks": {"bridge": off}}, container_networks=[HOUSE])
    assert kurma("config", "check").returncode == 0, "no pod joins the network default unasked"
    configure()
    assert kurma("config", "check").returncode == 0
