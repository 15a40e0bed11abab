"""Isolators at the command line: asked for, told of, refused, shown (X1)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pods.early import app_manifest
from tests.integration.pods.early import archive as early_archive
from tests.kit.command import Kurma
from tests.kit.images import archive, busybox_root, shell

pytestmark = pytest.mark.root

Sleeping = Callable[..., subprocess.Popen[str]]
BOUNDING = "sed -n 's/^CapBnd:.//p' /proc/self/status"
NET_BIND_SERVICE, CHOWN, FOURTEEN = 1 << 10, 1, 0xA80425FB


def run(kurma: Kurma, *options: str, script: str = "true", image: str = "") -> subprocess.CompletedProcess[str]:
    words = ("--net", "none", *options, "--exec", "/bin/sh", image or kurma.image, "--", "-c", script)
    return kurma("run", *words)


def shown(kurma: Kurma, pod: str) -> dict[str, dict[str, Any]]:
    """What its JSON says of each isolator that somebody asked for."""
    reports = json.loads(kurma.out("show", pod, "--format", "json"))["isolators"]
    return {report["name"]: report for report in reports if not report["default"]}


def test_all_that_can_be_asked_for_in_short(kurma: Kurma, sleeping: Sleeping) -> None:
    """The app's, and the pod's own, in one command; read back from inside, told of by show."""
    options = (
        *("--memory", "64.5Mi", "--cpus", "1500m", "--caps-retain", "CAP_CHOWN,net_bind_service"),
        *("--isolator", "os/linux/oom-score-adj=300", "--isolator", "os/linux/no-new-privileges=true"),
        *("--ulimit", "nofile=100:200", "--ulimit", "core=0"),
        *("--isolator", 'os/unix/sysctl={"kernel.shmmni": "123"}', "--strict-isolators"),
    )
    sleeping("short", *options)
    script = f"cat /proc/self/oom_score_adj /proc/sys/kernel/shmmni; {BOUNDING}; grep NoNew /proc/self/status"
    script += "; ulimit -Sn; ulimit -Hn; ulimit -c"
    said = kurma.out("enter", "short", "--", "sh", "-c", script).split()
    assert said == ["300", "123", f"{CHOWN | NET_BIND_SERVICE:016x}", "NoNewPrivs:", "1", "100", "200", "0"]
    reports = shown(kurma, "short")
    assert {report["outcome"] for report in reports.values()} == {"enforced"}
    assert {name: report["app"] for name, report in reports.items()} == {
        "resource/memory": "busybox",
        "resource/cpu": "busybox",
        "os/linux/capabilities-retain-set": "busybox",
        "os/linux/oom-score-adj": "busybox",
        "os/linux/no-new-privileges": "busybox",
        "kurma.io/ulimits": "busybox",
        "os/unix/sysctl": None,
    }
    assert reports["resource/memory"]["value"] == {"limit": "64.5Mi"}
    assert "limit 67633152 bytes" in reports["resource/memory"]["amounts"]
    page = kurma.out("show", "short")
    assert '{"limit":"64.5Mi"} = ' in page
    assert "limit 67633152 bytes" in page
    assert "limit 1500 millicores" in page
    assert "nofile 100:200, core 0:0" in page
    # What nobody asked for is told as such.
    (usual,) = [line for line in page.splitlines() if line.startswith("kurma.io/pids-limit")]
    assert '{"limit":2048} = limit 2048' in usual
    assert "enforced, default" in usual
    manifest = json.loads(kurma.out("cat-manifest", "short"))
    assert manifest["isolators"] == [{"name": "os/unix/sysctl", "value": {"kernel.shmmni": "123"}}]


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that asks for an isolator which no plugin knows."""
    directory = tmp_path_factory.mktemp("asking")
    app = shell("true", isolators=[{"name": "example.com/none", "value": 1}])
    return archive(busybox_root(f"{directory}/root"), f"{directory}/busybox.aci", "example.com/busybox", app=app)


def test_what_is_not_enforced_is_told_and_refused_where_that_is_asked_for(kurma: Kurma, asking: str) -> None:
    """Strictness leaves nothing: no pod, no ids, no cgroup. What the user types is refused in any case."""
    state = kurma.state
    nothing = ("--isolator", "example.com/none=1")
    for command in ("run", "prepare"):
        done = kurma(command, "--net", "none", "--name", f"told-{command}", asking)
        told = "kurma: isolator example.com/none of app busybox is ignored: no installed plugin looks after it"
        assert told in done.stderr.splitlines()
        # Nobody asked for the others.
        assert done.stderr.count("kurma: isolator") == 1
        row = next(
            line for line in kurma.out("show", f"told-{command}").splitlines() if "example.com/none" in line
        )
        assert row.split()[:4] == ["example.com/none", "busybox", "1", "ignored"]
        kurma("rm", f"told-{command}")
    # The filter that a privileged app has not is none that anybody has asked for.
    done = kurma(
        "prepare", "--net", "none", "--name", "told", "--isolator", "os/linux/privileged=true", kurma.image
    )
    assert "seccomp-profile" not in done.stderr, done.stderr
    (row,) = [
        line for line in kurma.out("show", "told").splitlines() if line.startswith("kurma.io/seccomp-profile")
    ]
    assert "ignored, default" in row
    assert "the app is privileged" in row
    kurma("rm", "told")
    # A pod with ids of its own was there before, so that their directory is.
    kurma.out("prepare", "--net", "none", "--userns", "auto", "--name", "before", kurma.image)
    before = sorted(os.listdir(state / "pods")), sorted(os.listdir(state / "pods/.ids"))
    said = "isolator example.com/none of app busybox{}: no installed plugin looks after it"
    strict = (said.format(" would be ignored"), "leave out --strict-isolators to run without it")
    typed = (f"cannot enforce {said.format('')}", "leave out the option to run without it")
    for words, told_of in (
        (("run", "--strict-isolators", asking), strict),
        (("prepare", "--strict-isolators", asking), strict),
        (("run", *nothing, kurma.image), typed),
        (("prepare", *nothing, kurma.image), typed),
        # Also where the image asks for it, too.
        (("run", *nothing, asking), typed),
    ):
        done = kurma(words[0], "--net", "none", "--userns", "auto", "--name", "strict", *words[1:])
        assert done.returncode == 125
        assert done.stderr.splitlines() == [f"kurma: {told_of[0]}", f"  hint: {told_of[1]}"]
    assert (sorted(os.listdir(state / "pods")), sorted(os.listdir(state / "pods/.ids"))) == before
    assert "strict" not in kurma.out("list")


def test_a_value_that_is_wrong_leaves_no_pod(kurma: Kurma) -> None:
    before = kurma.out("list")
    done = run(kurma, "--caps-retain", "CAP_CHOWNN")
    assert done.returncode == 125
    assert done.stderr.splitlines() == [
        'kurma: isolator os/linux/capabilities-retain-set: no such capability: "CAP_CHOWNN"',
        "  hint: did you mean CAP_CHOWN?",
    ]
    done = run(kurma, "--isolator", 'os/unix/sysctl={"vm.swappiness": "1"}')
    assert done.returncode == 125
    assert "vm.swappiness is not a setting of a pod's own" in done.stderr
    assert "fs.mqueue.*" in done.stderr.splitlines()[1]
    assert kurma.out("list") == before


def test_what_the_command_line_says_takes_the_place_of_what_the_image_says(kurma: Kurma, tmp_path: Path) -> None:
    sets = [{"name": "os/linux/capabilities-remove-set", "value": {"set": ["CAP_KILL"]}}]
    root = busybox_root(str(tmp_path / "root"))
    image = archive(root, str(tmp_path / "less.aci"), "example.com/less", app=shell(BOUNDING, isolators=sets))
    assert int(kurma.out("run", "--net", "none", image), 16) == FOURTEEN & ~(1 << 5)
    done = run(kurma, "--caps-retain", "CAP_CHOWN", script=BOUNDING, image=image)
    assert (done.returncode, int(done.stdout, 16)) == (0, CHOWN), done.stderr
    done = run(kurma, "--caps-remove", "CAP_CHOWN", script=BOUNDING, image=image)
    assert (done.returncode, int(done.stdout, 16)) == (0, FOURTEEN & ~CHOWN), done.stderr


def test_an_app_that_is_added(kurma: Kurma, sleeping: Sleeping, asking: str) -> None:
    sleeping("host")
    words = ("app", "add", "host", "--start", "--name", "more", "--caps-remove", "CAP_CHOWN", "--memory", "32Mi")
    script = f"{BOUNDING}; exec sleep 1000"
    done = kurma(*words, "--exec", "/bin/sh", asking, "--", "-c", script)
    assert (done.returncode, done.stdout) == (0, "more\n"), done.stderr
    assert done.stderr.splitlines() == [
        "kurma: isolator example.com/none of app more is ignored: no installed plugin looks after it"
    ]
    assert int(kurma.out("enter", "host/more", "sh", "-c", BOUNDING), 16) == FOURTEEN & ~CHOWN
    assert shown(kurma, "host")["resource/memory"]["app"] == "more"
    before = kurma.out("app", "list", "host")
    refused = {
        (
            "--isolator",
            "example.com/none=1",
        ): "cannot enforce isolator example.com/none of app another: no installed",
        ("--isolator", 'os/unix/sysctl={"net.core.somaxconn": "7"}'): "os/unix/sysctl has no meaning for an app",
    }
    for options, said in refused.items():
        done = kurma("app", "add", "host", "--name", "another", *options, kurma.image)
        assert done.returncode == 125
        assert said in done.stderr.splitlines()[0]
    assert kurma.out("app", "list", "host") == before


def test_early_names(kurma: Kurma, tmp_path: Path) -> None:
    """E8: an early image's isolators, by either spelling, are the late ones, and hold."""
    script = "cat /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpu.weight 2>/dev/null; " + BOUNDING
    early = [
        {"name": "capabilities/boundingSet", "val": "CAP_CHOWN CAP_NET_BIND_SERVICE"},
        {"name": "cpu/shares", "val": "512"},
        {"name": "memory/limit", "val": "64M"},
        {"name": "privateNetwork", "val": "true"},
    ]
    for number, names in enumerate((early, [{**early[0], "name": "capabilities/bounding-set"}, *early[1:]])):
        manifest = app_manifest("example.com/early-1.0.0", script, isolators=names)
        root = busybox_root(str(tmp_path / f"root-{number}"))
        path, _ = early_archive(tmp_path / f"early-{number}.aci", root, manifest)
        done = kurma("run", "--net", "none", "--name", f"early-{number}", "--strict-isolators", path)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout.split()[-1], 16) == CHOWN | NET_BIND_SERVICE
        reports = shown(kurma, f"early-{number}")
        assert reports["resource/memory"]["value"] == {"limit": "64Mi"}
        assert "limit 67108864 bytes" in reports["resource/memory"]["amounts"]
        assert reports["os/linux/cpu-shares"]["value"] == 512
        assert set(reports) == {
            *("os/linux/capabilities-retain-set", "os/linux/cpu-shares", "resource/memory"),
            "os/linux/namespaces",
        }


@pytest.mark.vm
def test_the_list(kurma: Kurma) -> None:
    """What is enforced here, what is not, and why; what holds for who does not ask."""
    lines = kurma.out("isolators", "list").splitlines()
    assert lines[0].split() == ["ISOLATOR", "OF", "PLUGIN", "HERE", "DEFAULT", "NOTE"]
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert rows["os/linux/capabilities-retain-set"][1:4] == ["app", "linux", "enforced"]
    assert rows["os/unix/sysctl"][1:4] == ["pod", "linux", "enforced"]
    assert rows["kurma.io/pids-limit"][4] == '{"limit":2048}'
    listed = {one["name"]: one for one in json.loads(kurma.out("isolators", "list", "--format", "json"))}
    assert set(listed) == set(rows)
    for one in listed.values():
        assert one["outcome"] in ("enforced", "modified", "ignored", "refused")
        assert bool(one["note"]) == (one["outcome"] != "enforced"), one
