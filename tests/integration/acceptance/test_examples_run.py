"""The examples do what they say: the stager in shell under the real command, and the demo."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.command import PROGRAM, Kurma, one_line
from tests.kit.keys import Signers

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[3]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def shell(shared: Kurma, signers: Signers, tmp_path_factory: pytest.TempPathFactory) -> Kurma:
    """The steps of its README."""
    directory = tmp_path_factory.mktemp("shell")
    source = ROOT / "examples" / "stager_shell"
    rootfs, image = str(directory / "rootfs"), str(directory / "shell.aci")
    subprocess.run([source / "build", rootfs], check=True)
    shared.out("image", "build", "--from-rootfs", rootfs, "--manifest", str(source / "manifest.json"), "-o", image)
    signers.sign_beside(image, "alice")
    keys = directory / "trustedkeys"
    return shared.configured(
        directory / "kurma.json",
        stagers={"shell": {"image": image, "without_isolators": True}},
        trusted_host_keys=[signers.put("alice", keys, "host.d").name],
        trustedkeys=[str(keys)],
    )


class TestStagerInShell:
    """G8: a foreign stager through the same code."""

    @pytest.fixture
    def mine(self, kurma: Kurma, shell: Kurma) -> Iterator[Kurma]:
        """Only with this configuration can its pods be ended, too."""
        yield shell
        for pod in shell.json("list"):
            shell("rm", "--force", pod["uuid"])

    def test_exit_codes_and_output(self, mine: Kurma) -> None:
        done = mine.run("echo out; exit 6", "--stager", "shell")
        assert (done.returncode, done.stdout) == (6, "out\n"), done.stderr

    @pytest.mark.full
    def test_logs_when_it_is_over(self, mine: Kurma) -> None:
        words = (
            "--name",
            "over",
            "--net",
            "none",
            "--stager",
            "shell",
            mine.image,
            "--",
            "-c",
            "echo once; exit 4",
        )
        assert mine("run", *words).returncode == 4
        assert mine.out("logs", "over") == "once\n"
        assert mine("wait", "over").returncode == 4

    @pytest.mark.full
    def test_two_apps_and_their_records(self, mine: Kurma, tmp_path: Path) -> None:
        codes = (ROOT / "examples" / "demo" / "codes.yml").read_text().replace("@IMAGE@", mine.image)
        (tmp_path / "codes.yml").write_text(codes)
        done = mine("run", "--name", "codes", "--stager", "shell", "--pod", str(tmp_path / "codes.yml"))
        assert done.returncode == 42, done.stderr
        pod = mine.pod("codes")
        assert (pod["stager"], pod["state"], pod["exitCode"]) == ("shell", "stopped", 42)
        assert {name: app["exitCode"] for name, app in pod["apps"].items()} == {"fine": 0, "failing": 42}

    @pytest.mark.full
    def test_alive(self, mine: Kurma, background: Start) -> None:
        run = background(
            "alive", "trap 'exit 5' TERM; while :; do sleep 0.1; done", "--stager", "shell", net="default", by=mine
        )
        assert mine.pod("alive")["apps"]["busybox"]["exited"] is False
        done = mine("enter", "alive", "--", "/bin/sh", "-c", "echo inside; exit 7")
        assert (done.returncode, done.stdout) == (7, "inside\n"), done.stderr
        mine.out("stop", "alive")
        run.communicate(timeout=20)
        assert run.returncode == 5
        assert mine.pod("alive")["state"] == "stopped"

    def test_listed(self, mine: Kurma) -> None:
        rows = {stager["name"]: stager for stager in mine.json("stager", "list")}
        assert (rows["shell"]["kind"], rows["default"]["kind"]) == ("image", "plugin")
        assert mine.out("stager", "build", "shell").startswith("sha512-")

    def test_a_key_that_is_not_listed_any_more(self, mine: Kurma, tmp_path: Path) -> None:
        other = mine.configured(
            tmp_path / "k.json", stagers={"shell": {"image": mine.json("stager", "list")[-1]["image"]}}
        )
        before = mine.traces()
        one_line(other.run("true", "--stager", "shell"), "host privilege")
        assert mine.traces() == before


@pytest.mark.full
def test_the_demo(tmp_path: Path) -> None:
    """19.3: a registry image with a port, a plugin of pip, a killed daemon; no escape codes into a pipe."""
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PATH": f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}",
    }
    # Another pod that starts during the demo would switch it on.
    forward = Path("/proc/sys/net/ipv4/ip_forward")
    forward.write_text("0")
    done = subprocess.run(
        ["sh", ROOT / "examples" / "demo" / "demo.sh"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("hello from a pod") >= 4
    assert "kurma run -d --name web -p" in done.stdout
    uptime = done.stdout.partition("# kurma uptime\n")[2].splitlines()[0]
    assert uptime.split()[1:] == ["web"]
    after_kill = done.stdout.partition("# kill -KILL")[2]
    assert after_kill.index("running") < after_kill.index("hello from a pod") < after_kill.index(") adopted")
    assert "kurma run ended with status 42" in done.stdout
    assert done.stdout.endswith("done\n")
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert forward.read_text() == "1\n"
