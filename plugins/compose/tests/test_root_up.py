"""``kurma up`` and ``down`` with pods that run."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.parametrize("way", ["kurmad"], scope="module")]


class Shop:
    """A pod file. :ivar pods: scripts by the pods' names."""

    def __init__(self, kurma: Any, directory: Path) -> None:
        self.kurma = kurma
        self.file = directory / "pods.json"
        self.pods = dict.fromkeys(("cache", "web"), "echo up; exec sleep 1000")
        self.more: dict[str, Any] = {}

    def write(self) -> str:
        pods = [
            {
                "name": name,
                "apps": [
                    {"name": "one", "image": self.kurma.image, "exec": ["/bin/sh", "-c", script], **self.more}
                ],
                "networks": ["none"],
            }
            for name, script in self.pods.items()
        ]
        self.file.write_text(json.dumps({"pods": pods}))
        return str(self.file)

    def up(self, *options: str) -> list[str]:
        """Its lines."""
        return self.kurma.out("up", *options, self.write()).splitlines()

    def running(self) -> dict[str, str]:
        """UUIDs of the pods that run, by name."""
        pods = json.loads(self.kurma.out("list", "--format", "json"))
        return {pod["name"]: pod["uuid"] for pod in pods if pod["state"] == "running"}


@pytest.fixture
def shop(kurma: Any, tmp_path: Path) -> Shop:
    return Shop(kurma, tmp_path)


def test_it_starts_replaces_removes_and_leaves_alone(shop: Shop) -> None:
    assert shop.up() == ["cache: created", "web: created"]
    first = shop.running()
    assert list(first) == ["cache", "web"]
    assert shop.up() == ["cache: unchanged", "web: unchanged"]
    assert shop.running() == first

    shop.pods["web"] = "echo another; exec sleep 1000"
    assert shop.up() == ["cache: unchanged", "web: replaced"]
    second = shop.running()
    assert (second["cache"], second["web"] == first["web"]) == (first["cache"], False)
    assert shop.kurma.out("logs", "web") == "another\n"

    shop.kurma.out("stop", "cache")
    assert shop.up() == ["cache: started", "web: unchanged"]
    assert shop.running() == second

    shop.pods = {"web": shop.pods["web"], "worker": "exec sleep 1000"}
    assert shop.up() == ["cache: removed", "web: unchanged", "worker: created"]
    assert shop.running().keys() == {"web", "worker"}

    assert shop.kurma.out("down", str(shop.file)).splitlines() == ["worker: removed", "web: removed"]
    assert shop.kurma.out("down", str(shop.file)) == ""
    assert shop.kurma.out("list", "--no-legend") == ""


def _stopping(shop: Shop, scripts: dict[str, str], after: dict[str, str]) -> None:
    """Writes pods that share a volume, and run a script on SIGTERM. :param after: by name, annotations."""
    shop.pods = {
        name: f"trap '{script}; exit 0' TERM; echo > /srv/{name}; while :; do sleep 0.1; done"
        for name, script in scripts.items()
    }
    shop.more = {"mounts": [{"volume": "down", "path": "/srv"}]}
    value = json.loads(Path(shop.write()).read_text())
    for pod in value["pods"]:
        pod["volumes"] = [{"name": "down", "kind": "named"}]
        if pod["name"] in after:
            pod["annotations"] = [{"name": "kurma.io/up/after", "value": after[pod["name"]]}]
    shop.file.write_text(json.dumps(value))
    assert shop.kurma.out("up", str(shop.file)).splitlines() == [f"{name}: created" for name in scripts]
    files = Path(shop.kurma.out("volume", "show", "--format", "{{.path}}", "down").strip())
    until(lambda: all((files / name).exists() for name in scripts), "traps")


def _ended(kurma: Any, *names: str) -> str:
    """The files that scripts have written. Removes them."""
    path = Path(kurma.out("volume", "show", "--format", "{{.path}}", "down").strip())
    found = " ".join(sorted(one.name for one in path.iterdir() if one.name not in names))
    kurma.out("volume", "rm", "down")
    return found


@pytest.mark.parametrize("managed", [False, True])
def test_pods_stop_at_the_same_time(shop: Shop, managed: bool) -> None:
    """Each ends only after the other one was asked to."""
    wait = "echo > /srv/{0}-asked; until [ -e /srv/{1}-asked ]; do sleep 0.1; done; echo > /srv/{0}-ended"
    scripts = {"cache": wait.format("cache", "web"), "web": wait.format("web", "cache")}
    _stopping(shop, scripts, {})
    host = () if managed else ("--host", "local")
    done = shop.kurma(*host, "down", str(shop.file))
    assert (done.returncode, done.stdout) == (0, "web: removed\ncache: removed\n"), done.stderr
    assert _ended(shop.kurma, "cache", "web") == "cache-asked cache-ended web-asked web-ended"


def test_pods_that_are_replaced_or_gone_stop_at_the_same_time(shop: Shop) -> None:
    """Each ends only after the other one was asked to."""
    wait = "echo > /srv/{0}-asked; until [ -e /srv/{1}-asked ]; do sleep 0.1; done; echo > /srv/{0}-ended"
    scripts = {"cache": wait.format("cache", "web"), "web": wait.format("web", "cache")}
    _stopping(shop, scripts, {})
    shop.pods, shop.more = {"web": "exec sleep 1000"}, {}
    assert shop.up() == ["cache: removed", "web: replaced"]
    assert shop.kurma.out("down", str(shop.file)) == "web: removed\n"
    assert _ended(shop.kurma, "cache", "web") == "cache-asked cache-ended web-asked web-ended"


def test_a_pod_stops_after_those_that_depend_on_it(shop: Shop) -> None:
    """Also if they are not in the file any more."""
    scripts = {
        "db": "[ -e /srv/web-ended ] && [ -e /srv/gone-ended ] && echo > /srv/db-last",
        "web": "sleep 0.5; echo > /srv/web-ended",
        "gone": "sleep 0.5; echo > /srv/gone-ended",
    }
    _stopping(shop, scripts, {"web": "db", "gone": "db"})
    value = json.loads(shop.file.read_text())
    del value["pods"][2]
    shop.file.write_text(json.dumps(value))
    assert shop.kurma.out("down", str(shop.file)).splitlines() == ["gone: removed", "web: removed", "db: removed"]
    assert _ended(shop.kurma, "db", "web", "gone") == "db-last gone-ended web-ended"


def test_after_a_kill_the_next_down_does_the_rest(shop: Shop) -> None:
    wait = "echo > /srv/{0}-asked; until [ -e /srv/go ]; do sleep 0.1; done"
    _stopping(shop, {name: wait.format(name) for name in ("db", "web", "worker")}, {"web": "db"})
    path = Path(shop.kurma.out("volume", "show", "--format", "{{.path}}", "down").strip())
    process = shop.kurma.popen("down", str(shop.file))
    until(lambda: (path / "web-asked").exists() and (path / "worker-asked").exists(), "two stops")
    assert not (path / "db-asked").exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (path / "go").touch()
    assert shop.kurma("down", str(shop.file)).returncode == 0
    assert shop.kurma.out("list", "--no-legend") == ""
    assert (path / "db-asked").exists()
    shop.kurma.out("volume", "rm", "down")


def test_a_change_of_a_file_of_variables_is_a_change(shop: Shop, tmp_path: Path) -> None:
    variables = tmp_path / "shop.env"
    variables.write_text("A=1\n")
    shop.more = {"environmentFiles": ["shop.env"]}
    shop.pods = {"web": "echo $A; exec sleep 1000"}
    assert shop.up() == ["web: created"]
    variables.write_text("A=2\n")
    assert shop.up() == ["web: replaced"]
    assert shop.kurma.out("logs", "web") == "2\n"


def test_a_pod_of_another_file_is_left_alone(shop: Shop) -> None:
    shop.kurma.out("run", "-d", "--name", "web", "--net", "none", "--exec", "/bin/sleep", shop.kurma.image, "1000")
    done = shop.kurma("up", shop.write())
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is a pod web already" in done.stderr
    assert shop.running().keys() == {"web"}
    assert shop.kurma.out("down", str(shop.file)) == ""
    assert shop.running().keys() == {"web"}


def test_a_power_needs_a_grant(shop: Shop) -> None:
    name = "os/linux/capabilities-retain-set"
    shop.more = {"isolators": [{"name": name, "value": {"set": ["CAP_SYS_ADMIN"]}}]}
    shop.pods = {"web": shop.pods["web"]}
    done = shop.kurma("up", shop.write())
    assert (done.returncode, done.stdout) == (125, "")
    assert f"--grant {name}=CAP_SYS_ADMIN" in done.stderr
    assert shop.up("--grant", f"{name}=CAP_SYS_ADMIN") == ["web: created"]


def test_a_new_version_that_cannot_be_made_costs_no_pod(shop: Shop) -> None:
    shop.up()
    before = shop.running()
    old = dict(shop.pods)
    shop.pods = {"gone": "exec sleep 1000", **old}
    shop.up()
    shop.pods = {**old, "web": "exec sleep 2000"}
    shop.more = {"secrets": [{"name": "up-missing"}]}
    done = shop.kurma("up", shop.write())
    assert (done.returncode, done.stdout) == (125, "")
    assert "kurma: pod cache: app one: no secret up-missing" in done.stderr
    running = shop.running()
    assert running.pop("gone")
    assert running == before
    shop.more = {}
    assert shop.up() == ["gone: removed", "cache: unchanged", "web: replaced"]
    names = shop.kurma.out("list", "--format", "{{.name}}").split()
    assert sorted(names) == ["cache", "web"]


def test_a_pod_with_ports_and_ids_of_the_host_is_replaced(shop: Shop) -> None:
    port = {"name": "web", "hostPort": 18977, "podPort": {"name": "web", "protocol": "tcp", "port": 80}}
    for word in ("created", "replaced"):
        shop.pods = {"web": f"exec sleep {1000 + len(word)}"}
        value = json.loads(Path(shop.write()).read_text())
        value["pods"][0] |= {
            "ports": [port],
            "networks": ["default"],
            "annotations": [{"name": "kurma.io/userns", "value": "1879048192:65536"}],
        }
        shop.file.write_text(json.dumps(value))
        assert shop.kurma.out("up", str(shop.file)) == f"web: {word}\n"
    shop.kurma.out("down", str(shop.file))
    shop.kurma.out("network", "rm", "default")


def test_an_error_names_the_pod(shop: Shop) -> None:
    value = json.loads(Path(shop.write()).read_text())
    value["pods"][1]["apps"][0]["healthCheck"] = {"tcp": {"port": 0}}
    shop.file.write_text(json.dumps(value))
    done = shop.kurma("up", str(shop.file))
    assert f"{shop.file}: pod web: invalid manifest: $.apps[0].healthCheck.tcp.port" in done.stderr
    value["pods"][1]["apps"][0] |= {"healthCheck": False, "image": "sha512-" + "0" * 128}
    shop.file.write_text(json.dumps(value))
    assert "kurma: pod web: " in shop.kurma("up", str(shop.file)).stderr


def test_named_volumes_of_the_file_are_removed(shop: Shop) -> None:
    kurma = shop.kurma
    shop.pods = {"web": "exec sleep 1000"}
    shop.more = {"mounts": [{"volume": name, "path": f"/{name}"} for name in ("up-own", "up-shared", "up-kept")]}
    value = json.loads(Path(shop.write()).read_text())
    value["pods"][0] |= {
        "volumes": [{"name": name, "kind": "named"} for name in ("up-own", "up-shared", "up-kept")],
        "annotations": [{"name": "kurma.io/up/keep-volumes", "value": "up-kept"}],
    }
    shop.file.write_text(json.dumps(value))
    assert kurma.out("up", str(shop.file)) == "web: created\n"
    kurma.out("prepare", "--name", "other", "--net", "none", "-v", "up-shared:/srv", kurma.image)
    assert kurma.out("down", str(shop.file)) == "web: removed\n"
    done = kurma("down", "--volumes", str(shop.file))
    assert (done.returncode, done.stdout) == (0, "volume up-own: removed\n")
    assert "volume up-shared: kept, since other pods use it: other" in done.stderr
    kurma.out("rm", "other")
    assert kurma.out("down", "--volumes", str(shop.file)) == "volume up-shared: removed\n"
    kurma.out("volume", "rm", "up-kept")


def test_of_two_commands_at_once_the_second_waits(shop: Shop) -> None:
    shop.pods = {"db": "exec sleep 1000", "web": "exec sleep 1000"}
    value = json.loads(Path(shop.write()).read_text())
    value["pods"][0]["apps"][0]["healthCheck"] = {"command": "test -e /ready", "interval": 0.1, "retries": 1000}
    value["pods"][1]["annotations"] = [{"name": "kurma.io/up/after-healthy", "value": "db"}]
    shop.file.write_text(json.dumps(value))
    first = shop.kurma.popen("up", str(shop.file))
    until(lambda: "db" in shop.running(), "the first pod")
    second = shop.kurma.popen("up", str(shop.file))
    assert second.stderr is not None
    assert "another command for" in second.stderr.readline()
    shop.kurma.out("exec", "db", "touch", "/ready")
    for process in (first, second):
        process.communicate()
        assert process.returncode == 0
    assert shop.running().keys() == {"db", "web"}
    assert not list(shop.kurma.state.glob("up-*"))


def test_a_program_that_cannot_be_executed_is_told(shop: Shop) -> None:
    shop.pods = {"web": ""}
    shop.more = {"exec": ["/no/such/program"]}
    done = shop.kurma("up", shop.write())
    assert (done.returncode, done.stdout) == (127, "web: created\n")
    assert "pod web: app one: " in done.stderr
    assert shop.kurma.out("down", str(shop.file)) == "web: removed\n"


def test_pods_of_standard_input_need_a_name(shop: Shop) -> None:
    text = Path(shop.write()).read_text()
    done = shop.kurma("up", "-", input=text)
    assert done.returncode == 2
    assert "give --project NAME" in done.stderr
    assert shop.kurma("up", "--project", "shop", "-", input=text).stdout == "cache: created\nweb: created\n"
    assert shop.kurma("down", "--project", "shop", "-", input=text).stdout == "web: removed\ncache: removed\n"


@pytest.mark.parametrize(
    "had", [pytest.param(count, marks=[] if count == 1 else pytest.mark.full) for count in range(4)]
)
def test_after_a_kill_the_next_run_does_the_rest(shop: Shop, had: int) -> None:
    """:param had: pods of the new file that exist when the command is killed."""
    shop.pods = {"gone": "exec sleep 1000", "changed": "exec sleep 1000", "kept": "exec sleep 1000"}
    shop.up()
    before = shop.running()
    shop.pods = dict.fromkeys(("changed", "new", "newer"), "exec sleep 2000") | {"kept": "exec sleep 1000"}
    process = shop.kurma.popen("up", shop.write())
    old = set(before.values()) - {before["kept"]}

    def there() -> int:
        pods = json.loads(shop.kurma.out("list", "--format", "json"))
        return sum(pod["name"] != "kept" and pod["uuid"] not in old for pod in pods)

    until(lambda: process.poll() is not None or there() >= had, f"{had} new pods")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shop.up()
    after = shop.running()
    assert after.keys() == {"changed", "new", "newer", "kept"}
    assert after["kept"] == before["kept"]
    assert after["changed"] != before["changed"]
    assert shop.up() == ["changed: unchanged", "new: unchanged", "newer: unchanged", "kept: unchanged"]


def test_wait_returns_when_all_pods_are_healthy(shop: Shop) -> None:
    check = {"command": "test -e /ready", "interval": 0.1, "retries": 1000}
    shop.pods = {"web": "sleep 0.5; echo > /ready; exec sleep 1000"}
    shop.more = {"healthCheck": check}
    assert shop.up("--wait") == ["web: created"]
    assert json.loads(shop.kurma.out("show", "--format", "json", "web"))["health"] == "healthy"
    assert shop.up("--wait") == ["web: unchanged"]
    shop.more = {}
    assert shop.up("--wait") == ["web: replaced"]


@pytest.mark.parametrize(
    ("script", "retries", "state"),
    [("exec sleep 1000", 1, "unhealthy"), ("exit 3", 1000, "stopped")],
)
def test_wait_names_the_pod_that_is_not_healthy(shop: Shop, script: str, retries: int, state: str) -> None:
    shop.pods = {"cache": "exec sleep 1000"}
    shop.up()
    shop.pods["web"] = script
    shop.more = {"healthCheck": {"command": "false", "interval": 0.1, "retries": retries}}
    done = shop.kurma("up", "--wait", shop.write())
    assert done.returncode == 125
    assert "web: created" in done.stdout
    one = "web" if state == "stopped" else "(cache|web)"
    assert re.search(f"pod {one} is {state}", done.stderr), done.stderr


def test_a_pod_starts_after_others_are_healthy(shop: Shop) -> None:
    def up(check: str) -> subprocess.CompletedProcess[str]:
        shop.pods = dict.fromkeys(("db", "web"), "exec sleep 1000")
        value = json.loads(Path(shop.write()).read_text())
        db, web = value["pods"]
        db["apps"][0]["healthCheck"] = {"command": check, "interval": 0.1, "retries": 1}
        web["annotations"] = [{"name": "kurma.io/up/after-healthy", "value": "db"}]
        shop.file.write_text(json.dumps(value))
        return shop.kurma("up", str(shop.file))

    done = up("false")
    assert (done.returncode, done.stdout) == (125, "db: created\n")
    assert "pod db is unhealthy" in done.stderr
    assert shop.running().keys() == {"db"}
    assert up("true").stdout == "db: replaced\nweb: created\n"
    assert up("true").stdout == "db: unchanged\nweb: unchanged\n"


def test_a_pod_starts_after_others_have_ended_well(shop: Shop) -> None:
    def up(script: str) -> subprocess.CompletedProcess[str]:
        shop.pods = {"migrate": script, "web": "exec sleep 1000"}
        value = json.loads(Path(shop.write()).read_text())
        value["pods"][1]["annotations"] = [{"name": "kurma.io/up/after-success", "value": "migrate"}]
        shop.file.write_text(json.dumps(value))
        # The pod that has ended well is no failure of the wait.
        return shop.kurma("up", "--wait", str(shop.file))

    done = up("exit 3")
    assert (done.returncode, done.stdout) == (125, "migrate: created\n")
    assert "pod migrate has ended with exit code 3" in done.stderr
    assert up("exit 0").stdout == "migrate: replaced\nweb: created\n"


def test_a_rebuilt_image_replaces_its_pod(shop: Shop, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin/sh")

    def build(word: str) -> None:
        words = ("--from-rootfs", str(tree), "--name", "example.com/built-web", "--label", "version=latest")
        shop.kurma.out("image", "build", *words, "--env", f"WORD={word}", "--exec", "/bin/sh")

    build("one")
    shop.pods = {"web": "echo $WORD; while :; do read x < /dev/console; done"}
    shop.more = {"image": "example.com/built-web:latest"}
    assert shop.up() == ["web: created"]
    assert shop.up() == ["web: unchanged"]
    build("two")
    assert shop.up("--pull", "never") == ["web: replaced"]
    assert until(lambda: shop.kurma.out("logs", "web"), "output") == "two\n"


COMPOSE = """
name: moved
services:
  web:
    image: busybox
    entrypoint: [/bin/sh, -c]
    command: ['cat /html/page; echo "$$LEVEL $$(id -u)"; exec sleep 1000']
    environment: {LEVEL: "${LEVEL:-debug}"}
    volumes: ["./site:/html:ro"]
    user: "1000"
    network_mode: none
    depends_on: [cache]
  cache:
    image: busybox
    entrypoint: sleep
    command: "1000"
    network_mode: none
    tmpfs: /cache
    volumes: [{type: volume, source: kept, target: /kept, volume: {subpath: a/b}}]
volumes: {kept: }
"""


def test_configs_are_files_until_no_pod_has_them(kurma: Any, tmp_path: Path) -> None:
    """Another content replaces the pods that have it, and the old one is removed."""
    content = "Hello\n  'world'\n"
    compose, file = tmp_path / "compose.yml", tmp_path / "pods.yml"
    script = "exec 2>&1; cat /motd /etc/level; stat -c '%a %u' /motd /etc/level; echo >>/motd || echo fails"
    value = {
        "name": "shop",
        "services": {
            "web": {
                "image": "busybox",
                "entrypoint": ["/bin/sh", "-c", f"{script}; sleep 1000"],
                "network_mode": "none",
                "configs": ["motd", {"source": "level", "target": "/etc/level", "uid": "70", "mode": "0400"}],
            },
            "other": {"image": "busybox", "entrypoint": ["/bin/sleep", "1000"], "network_mode": "none"},
        },
        "configs": {"motd": {"content": content}, "level": {"environment": "LEVEL"}},
    }
    (tmp_path / ".env").write_text("LEVEL=debug\n")

    def up() -> list[str]:
        compose.write_text(json.dumps(value))
        done = kurma("compose", "convert", str(compose), "-o", str(file))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        file.write_text(file.read_text().replace("docker://docker.io/library/busybox", kurma.image))
        return kurma.out("up", str(file)).splitlines()

    def secrets() -> list[str]:
        names = kurma.out("secret", "list", "--format", "{{.name}}").split()
        return [re.sub("_[0-9a-f]{12,}", "", name) for name in names]

    assert sorted(up()) == ["other: created", "web: created"]
    shown = f"{content}debug444 0\n400 70\n"
    log = until(lambda: (found := kurma.out("logs", "web")).endswith("fails\n") and found, "output")
    assert log.startswith(shown)
    assert "/motd: Read-only file system" in log
    assert secrets() == ["compose_config_level", "compose_config_motd"]
    assert content not in kurma.out("show", "web", "--format", "json")
    assert sorted(up()) == ["other: unchanged", "web: unchanged"]
    value["configs"]["motd"]["content"] = "Bye\n"
    assert sorted(up()) == ["other: unchanged", "web: replaced"]
    assert until(lambda: kurma.out("logs", "web"), "output").startswith("Bye\n")
    assert secrets() == ["compose_config_level", "compose_config_motd"]
    done = kurma("run", "--pod", str(file))
    assert "unknown key $.configs" in done.stderr
    del value["services"]["web"]["configs"][1]
    assert sorted(up()) == ["other: unchanged", "web: replaced"]
    assert secrets() == ["compose_config_motd"]
    assert sorted(kurma.out("down", str(file)).splitlines()) == ["other: removed", "web: removed"]
    assert secrets() == []


def test_a_compose_file_runs(kurma: Any, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/page").write_text("a page\n")
    (tmp_path / "compose.yml").write_text(COMPOSE)
    file = tmp_path / "pods.yml"
    done = kurma("compose", "convert", str(tmp_path / "compose.yml"), "-o", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    file.write_text(file.read_text().replace("docker://docker.io/library/busybox", kurma.image))
    assert kurma.out("up", str(file)).splitlines() == ["cache: created", "web: created"]
    assert until(lambda: kurma.out("logs", "web"), "output") == "a page\ndebug 1000\n"
    kurma.out("exec", "cache", "touch", "/kept/file")
    volume = Path(kurma.out("volume", "show", "--format", "{{.path}}", "moved-kept").strip())
    assert (volume / "a/b/file").exists()
    lines = ["web: removed", "cache: removed", "volume moved-kept: removed"]
    assert kurma.out("down", "--volumes", str(file)).splitlines() == lines
