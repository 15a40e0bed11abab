"""Compose files as pod files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import kurma_compose.compose
import pytest
import yaml
from kurma_compose import project
from kurma_compose.compose_file import Variables, is_literal, seconds, size, variables_of
from kurma_testing.commands import CommandContract

from kurma_core.api import pod_file
from kurma_core.errors import KurmaError, UsageError
from kurma_core.hookspecs.command import CommandHooks

WHOLE = """
name: shop
x-common: &common {restart: unless-stopped}
services:
  web:
    <<: *common
    image: nginx:${TAG:-1.27}
    depends_on: {db: {condition: service_healthy}}
    ports: ["18082:80", "127.0.0.1:9000-9001:9000-9001/udp", "443"]
    volumes:
      - ./site:/html:ro
      - data:/data
      - /scratch
      - {type: bind, source: /srv, target: /srv, bind: {create_host_path: false}}
    env_file: [plain.env, quoted.env]
    environment: [A=$$x, B]
    command: serve --title "a b"
    extra_hosts: ["a:10.0.0.1", "b:host-gateway"]
    cap_add: [NET_ADMIN]
    cap_drop: [ALL]
    user: 1000:100
    secrets: [pw]
    stop_signal: SIGINT
    healthcheck: {test: "true"}
    deploy: {replicas: 2, resources: {limits: {cpus: "0.5", memory: 64m}}}
  db:
    build: .
    entrypoint: [/bin/db]
    tmpfs: /run:size=1m
    read_only: true
    networks: {back: {ipv4_address: 10.1.0.2, aliases: [x]}}
    labels: [a=b]
    dns: 10.0.0.53
    hostname: database
networks: {back: }
volumes: {data: }
secrets: {pw: {file: ./pw}}
"""


def convert(driver: CommandHooks, directory: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    """The pods by name, and the notes."""
    file = directory / "compose.yml"
    file.write_text(text)
    output = directory / "pods.yml"
    done = CommandContract().run(driver, "convert", str(file), "-o", str(output))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    for pod in project.pods_in(str(output), None, pytest.fail)[1]:
        pod_file.request_of(pod, str(output), lambda note: pytest.fail(note))
    value = yaml.safe_load(output.read_text())
    return {pod["name"]: pod for pod in value["pods"]}, done.output.splitlines()


@pytest.mark.kurma_driver(kurma_compose.compose)
class TestCompose(CommandContract):
    def test_a_whole_file(self, driver: CommandHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("B", raising=False)
        (tmp_path / ".env").write_text("TAG=1.28\n")
        (tmp_path / "plain.env").write_text("P=1\n")
        (tmp_path / "quoted.env").write_text('Q="a b"\nA=file\n')
        pods, notes = convert(driver, tmp_path, WHOLE)
        assert list(pods) == ["db", "web-1", "web-2"]
        web, (app,) = pods["web-1"], pods["web-1"]["apps"]
        assert (app["name"], app["image"]) == ("web", "docker://docker.io/library/nginx:1.28")
        assert app["args"] == ["serve", "--title", "a b"]
        assert app["environmentFiles"] == ["./plain.env"]
        assert {one["name"]: one["value"] for one in app["environment"]} == {"Q": "a b", "A": "$x"}
        assert (app["user"], app["group"]) == ("1000", "100")
        isolators = {one["name"]: one["value"] for one in app["isolators"]}
        assert isolators == {
            "kurma.io/capabilities": {"add": ["CAP_NET_ADMIN"], "drop": ["ALL"]},
            "resource/cpu": {"limit": "500m"},
            "resource/memory": {"limit": str(64 << 20)},
        }
        volumes = {volume["name"]: volume for volume in web["volumes"]}
        assert volumes["html"]["source"] == "./site"
        assert volumes["html"]["readOnly"] is volumes["html"]["kurma.io/create"] is True
        assert volumes["data"] == {"name": "data", "kind": "named", "volume": "shop-data"}
        assert volumes["scratch"]["kind"] == "empty"
        assert volumes["srv"] == {"name": "srv", "kind": "host", "source": "/srv"}
        assert app["secrets"] == [{"name": "shop-pw", "target": "pw"}]
        assert app["healthCheck"] == {"command": "true"}
        assert {"name": "kurma.io/up/after-healthy", "value": "db"} in web["annotations"]
        assert [(port["hostPort"], port["podPort"]["port"]) for port in web["ports"]] == [
            (18082, 80),
            (9000, 9000),
        ]
        assert web["ports"][1]["hostIP"] == "127.0.0.1"
        assert web["ports"][1]["podPort"]["count"] == 2
        assert web["hosts"] == [{"address": "10.0.0.1", "names": ["a"]}]
        assert web["networks"] == ["default"]
        assert {"name": "kurma.io/pod/restart", "value": "always"} in web["annotations"]
        assert "ports" not in pods["web-2"]
        assert web["hostname"] == pods["web-2"]["hostname"] == "web"
        db, (app,) = pods["db"], pods["db"]["apps"]
        assert (app["exec"], app["readOnlyRootFS"]) == (["/bin/db"], True)
        assert db["volumes"][0]["kurma.io/size"] == str(1 << 20)
        assert (db["networks"], db["hostname"]) == (["back,ip=10.1.0.2"], "database")
        assert (db["userLabels"], db["dns"]) == ({"a": "b"}, {"nameservers": ["10.0.0.53"]})
        keys = [note.partition(": ")[0] for note in notes]
        assert keys == [
            "networks.back",
            "secrets.pw",
            "services.db.build",
            "services.db.networks.back.aliases",
            "services.web.ports",
            "services.web.env_file",
            "services.web.environment",
            "services.web.extra_hosts",
            "services.web.ports",
        ]

    def test_health_checks(self, driver: CommandHooks, tmp_path: Path) -> None:
        checks = """
services:
  words: {image: a, healthcheck: {test: [CMD, redis-cli, ping], interval: 1m30s, timeout: 500ms, start_period: 0s}}
  shell: {image: a, healthcheck: {test: [CMD-SHELL, "a b"], retries: 5, start_interval: 2s}}
  none: {image: a, healthcheck: {test: [NONE]}}
  disabled: {image: a, healthcheck: {disable: true}}
  of_the_image: {image: a, healthcheck: {retries: 2}}
  two: {image: a, depends_on: {words: {condition: service_healthy}, db: {condition: service_healthy}}}
  db: {image: a, scale: 2}
  three: {image: a, depends_on: [none, db]}
  last: {image: a, stop_grace_period: 1m, depends_on: {db: {condition: service_completed_successfully}}}
"""
        pods, notes = convert(driver, tmp_path, checks)
        assert {
            name: pod["apps"][0]["healthCheck"] for name, pod in pods.items() if "healthCheck" in pod["apps"][0]
        } == {
            "words": {"command": ["redis-cli", "ping"], "interval": 90, "timeout": 0.5},
            "shell": {"command": "a b", "retries": 5, "startInterval": 2},
            "none": False,
            "disabled": False,
            "of-the-image": {"retries": 2},
        }
        assert pods["two"]["annotations"] == [{"name": "kurma.io/up/after-healthy", "value": "words db-1 db-2"}]
        assert pods["three"]["annotations"] == [{"name": "kurma.io/up/after", "value": "none db-1 db-2"}]
        assert {one["name"]: one["value"] for one in pods["last"]["annotations"]} == {
            "kurma.io/stop-timeout": "60",
            "kurma.io/up/after-success": "db-1 db-2",
        }
        assert notes == []

    def test_secrets(self, driver: CommandHooks, tmp_path: Path) -> None:
        text = """
name: shop
services:
  a:
    image: b
    secrets:
      - file_one
      - {source: variable, target: /etc/v, uid: "70", gid: "71", mode: 0440}
      - there
  c: {image: b, secrets: [file_one, {source: named, target: other, mode: "0400"}]}
secrets:
  file_one: {file: ./one.txt}
  variable: {environment: PASSWORD}
  there: {external: true}
  named: {file: ./two.txt, name: two}
"""
        pods, notes = convert(driver, tmp_path, text)
        assert pods["a"]["apps"][0]["secrets"] == [
            {"name": "shop-file-one", "target": "file_one"},
            {"name": "shop-variable", "target": "/etc/v", "uid": 70, "gid": 71, "mode": "0440"},
            {"name": "there"},
        ]
        assert pods["c"]["apps"][0]["secrets"] == [
            {"name": "shop-file-one", "target": "file_one"},
            {"name": "two", "target": "other", "mode": "0400"},
        ]
        assert notes == [
            f"secrets.{name}: make the secret first: {command}"
            for name, command in {
                "file_one": f"kurma secret create shop-file-one {tmp_path}/one.txt",
                "variable": ': "${PASSWORD:?}" && printf %s "$PASSWORD" | kurma secret create shop-variable -',
                "there": "kurma secret create there FILE",
                "named": f"kurma secret create two {tmp_path}/two.txt",
            }.items()
        ]

    def test_each_volume_without_a_name_is_a_volume_of_its_own(self, driver: CommandHooks, tmp_path: Path) -> None:
        """Also if the paths in the container differ in one character alone."""
        text = """
services:
  a:
    image: b
    tmpfs: [/run/a_b, /run/a-b]
    volumes: [/data.one, /data-one, /data-one-3, "./site:/html", "./site:/html/", "own:/own", "own:/more"]
volumes: {own: }
"""
        pods, _ = convert(driver, tmp_path, text)
        volumes = [volume["name"] for volume in pods["a"]["volumes"]]
        mounts = {mount["path"]: mount["volume"] for mount in pods["a"]["apps"][0]["mounts"]}
        assert len(set(volumes)) == len(volumes) == 7
        own = ("/run/a_b", "/run/a-b", "/data.one", "/data-one", "/data-one-3")
        assert len({mounts[path] for path in own}) == 5
        assert mounts["/html"] == mounts["/html/"]
        assert mounts["/own"] == mounts["/more"]

    def test_configs(self, driver: CommandHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = """
name: shop
services:
  a:
    image: b
    secrets: [key]
    configs:
      - motd
      - {source: level, target: /etc/level, uid: "70", gid: 71, mode: 0440}
      - {source: there, target: etc/there}
      - file
      - {source: file, target: /etc/own, mode: 0440, uid: "70"}
      - {source: private, gid: "71"}
  c: {image: b, configs: [motd]}
configs:
  motd: {content: "Hello ${WHO}\\nand $$5\\n"}
  level: {environment: LEVEL}
  there: {external: true}
  file: {file: ./one.txt}
  private: {file: ./two.txt}
  unused: {content: x}
secrets:
  key: {external: true}
"""
        monkeypatch.setenv("WHO", "world")
        (tmp_path / ".env").write_text("LEVEL=debug\n")
        (tmp_path / "one.txt").write_text("$LEVEL\n")
        (tmp_path / "one.txt").chmod(0o644)
        (tmp_path / "two.txt").write_text("two\n")
        (tmp_path / "two.txt").chmod(0o640)
        pods, notes = convert(driver, tmp_path, text)
        (app,) = pods["a"]["apps"]
        assert app["configs"] == [
            {"name": "motd", "target": "/motd"},
            {"name": "level", "target": "/etc/level", "uid": 70, "gid": 71, "mode": "0440"},
            {"name": "file", "target": "/etc/own", "uid": 70, "mode": "0440"},
        ]
        assert app["secrets"] == [{"name": "key"}, {"name": "there", "target": "/etc/there"}]
        assert [mount["path"] for mount in app["mounts"]] == ["/file", "/private"]
        assert pods["c"]["apps"][0]["configs"] == [{"name": "motd", "target": "/motd"}]
        written = yaml.safe_load((tmp_path / "pods.yml").read_text())
        assert written["configs"] == {"motd": "Hello world\nand $5\n", "level": "debug", "file": "$LEVEL\n"}
        assert list(written) == ["project", "configs", "pods"]
        assert notes == [
            "configs.there: make it first, as a secret: kurma secret create there FILE",
            "secrets.key: make the secret first: kurma secret create key FILE",
            (
                "services.a.configs.file: ./one.txt is copied, for its uid and mode: "
                "convert again after it has changed"
            ),
            (
                "services.a.configs.private: gid not converted: not every user may read ./two.txt; "
                "change the file's own, or make a secret of it"
            ),
        ]

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (None, "no such file or directory"),
            (b"", "./one.txt is empty"),
            (b"\xff", "./one.txt is not a text in UTF-8"),
            (b"x" * (512 * 1024 + 1), "larger than 524288 bytes"),
        ],
    )
    def test_a_config_that_cannot_be_copied_is_mounted(
        self, driver: CommandHooks, tmp_path: Path, data: bytes | None, reason: str
    ) -> None:
        if data is not None:
            (tmp_path / "one.txt").write_bytes(data)
        text = "services: {a: {image: b, configs: [{source: c, mode: 0440}]}}\nconfigs: {c: {file: ./one.txt}}"
        pods, (note,) = convert(driver, tmp_path, text)
        assert note.startswith("services.a.configs.c: mode not converted: ")
        assert reason in note.lower().replace("utf", "UTF")
        (app,) = pods["a"]["apps"]
        assert (app["mounts"][0]["path"], "configs" in app) == ("/c", False)

    def test_parts_of_volumes(self, driver: CommandHooks, tmp_path: Path) -> None:
        text = """
name: shop
services:
  a:
    image: b
    volumes:
      - data:/all
      - {type: volume, source: data, target: /one, volume: {subpath: ./one//deep/}}
      - {type: volume, source: data, target: /two, read_only: true, volume: {subpath: two, nocopy: true}}
      - data-1:/other
      - {type: volume, source: data, target: /whole, volume: {subpath: ""}}
      - {type: volume, target: /new, volume: {subpath: x}}
volumes: {data: , data-1: }
"""
        pods, notes = convert(driver, tmp_path, text)
        (app,) = pods["a"]["apps"]
        volumes = {one["name"]: one for one in pods["a"]["volumes"]}
        assert len(volumes) == len(pods["a"]["volumes"])
        assert {one["path"]: volumes[one["volume"]] for one in app["mounts"]} == {
            "/all": {"name": "data", "kind": "named", "volume": "shop-data"},
            "/one": {
                "name": "data-1",
                "kind": "named",
                "volume": "shop-data",
                "kurma.io/sub-path": "one/deep",
            },
            "/two": {
                "name": "data-2",
                "kind": "named",
                "volume": "shop-data",
                "kurma.io/sub-path": "two",
                "readOnly": True,
            },
            "/other": {"name": "data-1-3", "kind": "named", "volume": "shop-data-1"},
            "/whole": {"name": "data", "kind": "named", "volume": "shop-data"},
            "/new": {"name": "new", "kind": "empty"},
        }
        assert notes == [
            "services.a.volumes.volume.nocopy: no counterpart",
            "services.a.volumes.volume.subpath: only a named volume has a counterpart of it",
        ]

    def test_unknown_keys_at_any_depth(self, driver: CommandHooks, tmp_path: Path) -> None:
        """The command notes a key without a counterpart wherever it is, and ignores keys that begin with x-."""
        (tmp_path / "e").write_text("A=b\n")
        text = """
services:
  a:
    image: b
    ulimits: {nofile: {soft: 1, hard: 2, other: 3, x-mine: 4}}
    healthcheck: {test: 'true', other: 1}
    deploy: {resources: {limits: {memory: 1g, other: 1}, other: 1}, restart_policy: {other: 1}, other: 1}
    secrets: [{source: s, other: 1}]
    configs: [{source: c, other: 1}]
    volumes: [{type: bind, source: /tmp, target: /v, other: 1, bind: {other: 1}}]
    depends_on: {b: {condition: service_started, required: true, other: 1}}
    env_file: [{path: ./e, other: 1}]
    devices: [{source: /dev/null, target: /dev/null, other: 1}]
    ports: [{target: 80, published: 80, other: 1}]
  b: {image: b}
secrets: {s: {external: true, other: 1}}
configs: {c: {content: c, other: 1}}
volumes: {v: {name: w, other: 1}}
"""
        _, notes = convert(driver, tmp_path, text)
        places = ["deploy", "deploy.resources", "deploy.resources.limits", "deploy.restart_policy"]
        places += ["ulimits.nofile", "healthcheck", "secrets", "configs", "volumes", "volumes.bind"]
        places += ["depends_on.b", "env_file", "devices", "ports"]
        of_services = {f"services.a.{place}.other: no counterpart" for place in places}
        of_the_file = {f"{place}.other: no counterpart" for place in ("secrets.s", "configs.c", "volumes.v")}
        assert {note for note in notes if "other" in note} == of_services | of_the_file
        assert not any("x-mine" in note for note in notes)

    def test_texts_of_variables(self, driver: CommandHooks, tmp_path: Path) -> None:
        """A variable makes a text of a number or a truth value."""
        text = "services: {a: {image: b, read_only: '${NOT_SET:-false}', scale: '${NOT_SET:-2}', pids_limit: '5'}}"
        pods, _ = convert(driver, tmp_path, text)
        assert list(pods) == ["a-1", "a-2"]
        (app,) = pods["a-1"]["apps"]
        assert app["readOnlyRootFS"] is False
        assert app["isolators"] == [{"name": "kurma.io/pids-limit", "value": {"limit": 5}}]

    def test_builds(self, driver: CommandHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = """
name: shop
services:
  a: {build: ./a}
  b: {image: "team/b:1.0", build: {context: b, dockerfile: File, target: last, args: {A: "x y"}, pull: true}}
  c: {image: example.com/c, build: .}
volumes: {kept: {external: true}}
"""
        monkeypatch.chdir(tmp_path)
        pods, notes = convert(driver, tmp_path, text)
        images = {name: pod["apps"][0]["image"] for name, pod in pods.items()}
        assert images == {"a": "localhost/shop-a:latest", "b": "localhost/team/b:1.0", "c": "example.com/c:latest"}
        assert notes == [
            "services.a.build: build the image first: kurma build -t localhost/shop-a:latest a",
            "services.b.build.pull: not in the command: see kurma build --help",
            (
                "services.b.build: build the image first: kurma build -t localhost/team/b:1.0 -f b/File "
                "--target last --build-arg 'A=x y' b"
            ),
            "services.c.build: build the image first: kurma build -t example.com/c:latest .",
        ]

    def test_images_and_places_without_a_letter(self, driver: CommandHooks, tmp_path: Path) -> None:
        text = """
services:
  a:
    image: b
    volumes:
      - {type: image, source: team/tools, target: /tools, image: {subpath: bin}}
      - {type: image, source: tools, target: /all}
      - ./d:/ü
"""
        pods, notes = convert(driver, tmp_path, text)
        volumes = {volume.pop("name"): volume for volume in pods["a"]["volumes"]}
        mounts = {one["path"]: volumes[one["volume"]] for one in pods["a"]["apps"][0]["mounts"]}
        tools = "docker://docker.io/team/tools"
        assert mounts == {
            "/tools": {"kind": "image", "kurma.io/image": tools, "kurma.io/sub-path": "bin"},
            "/all": {"kind": "image", "kurma.io/image": "docker://docker.io/library/tools"},
            "/ü": {"kind": "host", "source": "./d", "kurma.io/create": True},
        }
        assert notes == []

    def test_modes_in_octal_digits(self, driver: CommandHooks, tmp_path: Path) -> None:
        text = """
services:
  a:
    image: b
    secrets: [{source: s, target: one, mode: 0o440}, {source: s, target: two, mode: 0440}]
    volumes: [{type: tmpfs, target: /t, tmpfs: {mode: 0o1777}}]
secrets: {s: {file: s}}
"""
        pods, _ = convert(driver, tmp_path, text)
        assert [one["mode"] for one in pods["a"]["apps"][0]["secrets"]] == ["0440", "0440"]
        assert pods["a"]["volumes"][0]["mode"] == "1777"

    @pytest.mark.parametrize(
        ("files", "files_kept", "variables"),
        [
            ("[quoted.env, other.env]", [], {"A": "other b", "B": "plain"}),
            ("[quoted.env, plain.env]", [], {"A": "plain", "B": "plain"}),
            ("[plain.env, quoted.env]", ["./plain.env"], {"A": "quoted a", "B": "plain"}),
            ("[{path: raw.env, format: raw}]", ["./raw.env"], {}),
            ("[quoted.env, {path: raw.env, format: raw}]", [], {"A": '"$x"', "B": "plain"}),
        ],
    )
    @pytest.mark.parametrize("own", ["", "environment: [B=own]"])
    def test_a_later_file_of_variables_counts_more(
        self,
        driver: CommandHooks,
        tmp_path: Path,
        files: str,
        files_kept: list[str],
        variables: dict[str, str],
        own: str,
    ) -> None:
        for name, lines in (
            ("plain", "A=plain\n"),
            ("quoted", 'A="quoted a"\nB=plain\n'),
            ("other", 'A="other b"\n'),
            ("raw", 'A="$x"\n'),
        ):
            (tmp_path / f"{name}.env").write_text(lines)
        pods, _ = convert(driver, tmp_path, f"services:\n  a:\n    image: b\n    {own}\n    env_file: {files}\n")
        app = pods["a"]["apps"][0]
        assert app.get("environmentFiles", []) == files_kept
        assert {one["name"]: one["value"] for one in app.get("environment", ())} == {
            **variables,
            **({"B": "own"} if own else {}),
        }

    def test_a_key_of_another_name_is_told(self, driver: CommandHooks, tmp_path: Path) -> None:
        _, notes = convert(
            driver,
            tmp_path,
            "services: {a: {image: b, gpus: all, prots: [], x-own: 1}}\ninclude: [c]",
        )
        assert [note.partition(": ")[::2] for note in notes] == [
            ("include", "no counterpart"),
            ("services.a.gpus", "not converted: docs/howto/from_compose.md says what Kurma has for it"),
            ("services.a.prots", "is not a key of a service, and is ignored"),
        ]

    def test_rights_and_limits(self, driver: CommandHooks, tmp_path: Path) -> None:
        text = """
services:
  a:
    image: b
    security_opt: [no-new-privileges, "seccomp:./own.json", apparmor=web, "label:type:t", systempaths=unconfined]
    privileged: true
    devices: ["/dev/fuse:rw", {source: /dev/kvm, target: /dev/k, permissions: r}, "vendor.com/gpu=0"]
    sysctls: [net.core.somaxconn=9]
    pid: host
    ipc: "service:b"
    userns_mode: host
    cgroup_parent: my.slice
    cpu_shares: 512
    cpuset: 0-1
    cpu_quota: 50ms
    oom_score_adj: 5
    ulimits: {nproc: 65535, memlock: {soft: -1, hard: "-1"}, nofile: {soft: 20000, hard: 40000}, core: }
    tmpfs: ["/t:size=1m,mode=1770,uid=5,exec"]
    label_file: labels
    labels: {b: own}
    deploy: {restart_policy: {condition: on-failure, delay: 5s}}
"""
        (tmp_path / "labels").write_text("a=1\nb=2\n")
        pods, notes = convert(driver, tmp_path, text)
        pod, (app,) = pods["a"], pods["a"]["apps"]
        assert {one["name"]: one["value"] for one in app["isolators"]} == {
            "os/linux/no-new-privileges": True,
            "kurma.io/seccomp-profile": {"path": f"{tmp_path}/own.json"},
            "os/linux/apparmor-profile": {"profile": "web"},
            "kurma.io/masked-paths": [],
            "kurma.io/read-only-paths": [],
            "os/linux/privileged": True,
            "kurma.io/devices": [
                {"path": "/dev/fuse", "hostPath": "/dev/fuse", "access": "rw"},
                {"path": "/dev/k", "hostPath": "/dev/kvm", "access": "r"},
            ],
            "kurma.io/cdi": ["vendor.com/gpu=0"],
            "os/linux/cpu-shares": 512,
            "kurma.io/linux-resources": {"cpusetCpus": "0-1", "cpuQuota": 50000},
            "os/linux/oom-score-adj": 5,
            "kurma.io/ulimits": {"nproc": [65535, 65535], "memlock": [-1, -1], "nofile": [20000, 40000]},
        }
        assert {one["name"]: one["value"] for one in pod["isolators"]} == {
            "os/unix/sysctl": {"net.core.somaxconn": "9"},
            "os/linux/namespaces": {"pid": "host"},
        }
        assert {one["name"]: one["value"] for one in pod["annotations"]} == {
            "kurma.io/userns": "none",
            "kurma.io/cgroup-parent": "my.slice",
            "kurma.io/pod/restart": "on-failure",
        }
        assert pod["userLabels"] == {"a": "1", "b": "own"}
        assert (pod["volumes"][0]["mode"], pod["volumes"][0]["uid"]) == ("1770", 5)
        assert [note.partition(": ")[0].removeprefix("services.a.") for note in notes] == [
            *("security_opt", "ipc", "tmpfs", "deploy.restart_policy.delay")
        ]

    def test_services_extend_others_and_have_profiles(
        self, driver: CommandHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = """
services:
  base: {image: b, environment: [A=1, B=1], cap_drop: [ALL], command: [x], depends_on: [db], labels: {a: "1"}}
  web: {extends: {service: base}, environment: {B: 2}, cap_drop: [ALL, KILL], command: [y]}
  more: {extends: web, image: c, profiles: [debug]}
  db: {image: db}
volumes: {kept: {external: true}}
"""
        monkeypatch.delenv("COMPOSE_PROFILES", raising=False)
        pods, notes = convert(driver, tmp_path, text)
        assert list(pods) == ["db", "base", "web"]
        (app,) = pods["web"]["apps"]
        assert {one["name"]: one["value"] for one in app["environment"]} == {"A": "1", "B": "2"}
        assert app["isolators"][0]["value"] == {"drop": ["ALL", "CAP_KILL"]}
        assert (app["args"], pods["web"]["userLabels"]) == (["y"], {"a": "1"})
        assert notes == ["services.more: left out: COMPOSE_PROFILES names none of its profiles, debug"]
        monkeypatch.setenv("COMPOSE_PROFILES", "x,debug")
        pods, notes = convert(driver, tmp_path, text)
        assert (pods["more"]["apps"][0]["image"], notes) == ("docker://docker.io/library/c", [])

    def test_an_extending_service_replaces_what_has_the_same_target(
        self, driver: CommandHooks, tmp_path: Path
    ) -> None:
        text = """
services:
  base: {image: b, volumes: ["a:/data", "a:/more:ro"], extra_hosts: {one: 10.0.0.1}, networks: [front]}
  web:
    extends: base
    volumes: [{type: volume, source: b, target: /data}]
    extra_hosts: ["two=10.0.0.2"]
    networks: {back: {}}
volumes: {a: , b: }
networks: {front: , back: }
"""
        pods, _ = convert(driver, tmp_path, text)
        (app,) = pods["web"]["apps"]
        assert sorted(mount["path"] for mount in app["mounts"]) == ["/data", "/more"]
        assert [one["names"] for one in pods["web"]["hosts"]] == [["one"], ["two"]]

    def test_volumes_of_others_are_kept(self, driver: CommandHooks, tmp_path: Path) -> None:
        text = """
name: shop
services: {a: {image: b, volumes: ["own:/o", "theirs:/t"]}}
volumes: {own: , theirs: {external: true}}
"""
        pods, _ = convert(driver, tmp_path, text)
        templates = [pod_file.request_of(pod, "x", str).template.pod for pod in pods.values()]
        assert project.volumes_of(templates) == ["shop-own"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("services: []", "compose.yml: services: expected an object of services, found an empty list"),
            ("version: '3'", "it has no services"),
            ("services: ", "services: expected an object of services, found null"),
            ("services: {web: }", "compose.yml: services.web: expected an object, found null"),
            ("services: {web: x}", 'services.web: expected an object, found "x"'),
            ("services: {a: {image: b, ports: [x:y]}}", "malformed port"),
            ("services: {a: {image: b, ports: 5}}", "services.a.ports: expected a list of ports, found 5"),
            ("services: {a: {image: [b]}}", "services.a.image: expected a text, found a list"),
            ("services: {a: {image: b, ports: [{published: 1}]}}", "services.a.ports[0].target: expected a value"),
            ("services: {a: {image: b, environment: x}}", "an object, or a list of NAME=VALUE, found"),
            ("services: {a: {image: b, volumes: [{target: 3}]}}", "services.a.volumes[0].target: expected a text"),
            ("services: {a: {image: b, cpus: many}}", 'services.a.cpus: expected a number, found "many"'),
            (
                "services: {a: {image: b, healthcheck: {retries: x}}}",
                "healthcheck.retries: expected a whole number",
            ),
            ("services: {a: {image: b, depends_on: c}}", "services.a.depends_on: expected a list of names, or"),
            (
                "services: {a: {image: b, secrets: [{target: c}]}}",
                "services.a.secrets[0].source: expected a value",
            ),
            ("services: {a: {image: b, read_only: maybe}}", "services.a.read_only: expected true or false"),
            (
                "services: {a: {image: b}}\nnetworks: [x]",
                "compose.yml: networks: expected an object, found a list",
            ),
            ("services: {a: {image: '${A?must be set}'}}", "the variable A is not set: must be set"),
            ("services: {a: {image: b, depends_on: [c]}, c: {image: b, depends_on: [a]}}", "a -> c -> a"),
            ("services: {a: {image: b, env_file: none}}", "none: cannot be read"),
            ("services: {a: {image: b, deploy: {replicas: 100000000}}}", "not a number of pods from 0 to 1000"),
            ("services: {a: {image: b, scale: -1}}", "not a number of pods from 0 to 1000"),
            (
                "services: {a: {depends_on: {c: {condition: service_healthy}}}, c: {image: b, scale: 1000000000}}",
                "not a number of pods from 0 to 1000",
            ),
            ("services: {a: {image: b, healthcheck: {test: [pg_isready]}}}", "malformed test"),
            (
                "services: {a: {image: b, sysctls: 5}}",
                "services.a.sysctls: expected an object, or a list of NAME=VALUE",
            ),
            (
                "services: {a: {image: b, ulimits: {nofile: many}}}",
                'services.a.ulimits.nofile: expected a whole number, found "many"',
            ),
            (
                "services: {a: {image: b, ulimits: {nofile: {soft: 5}}}}",
                "services.a.ulimits.nofile.hard: expected a value, found null",
            ),
            ("services: {a: {image: b, ulimits: [nofile=5]}}", "services.a.ulimits: expected an object of limits"),
            ("services: {a: {image: b, configs: [c]}}", "uses configs.c, which the file does not declare"),
            (
                "services: {a: {image: b, configs: [c]}}\nconfigs: {c: }",
                "services.a.configs: config c has no content",
            ),
            ("services: {a: {image: b, secrets: [s]}}", "uses secrets.s, which the file does not declare"),
            ("services: {a: {image: b, volumes: ['d:/d']}}", "uses volumes.d, which the file does not declare"),
            (
                "services: {a: {image: b, configs: [c]}}\nconfigs: {c: {environment: NOT_SET}}",
                "services.a.configs: config c: the variable NOT_SET is not set",
            ),
            (
                "services: {a: {image: b, configs: [c]}}\nconfigs: {c: {content: ''}}",
                "services.a.configs: config c is empty, and cannot be a file",
            ),
            (
                "services: {a: {image: b, secrets: [c]}}\nsecrets: {c: {environment: 'A\"; reboot #'}}",
                "secret c: 'A\"; reboot #' cannot be a variable's name",
            ),
            (f"services: {{a: {{image: '{'${A:-' * 600}b{'}' * 600}'}}}}", "is not a compose file"),
            ("services: {a: {image: b, devices: [5]}}", "services.a.devices[0]: expected a text"),
            ("services: {a_b: {image: b}, a-b: {image: b}}", "services a_b and a-b would both be the pod a-b"),
            ("services: {..: {image: b}}", "service '..': the name cannot be that of a pod"),
            (f"services: {{{'a' * 300}: {{image: b}}}}", "the name cannot be that of a pod"),
            ("services: {a: {command: b}}", "services.a: it has neither image nor build"),
            ("services: {a: {image: ''}}", "services.a: it has neither image nor build"),
            ("services: {a: {image: b, depends_on: [c]}}", "services.a.depends_on: there is no service c"),
            ("services: {a: {extends: b}, b: {extends: a}}", "services extend each other: a -> b -> a"),
            ("services: {a: {extends: {service: b, file: c.yml}}}", "there is no service b in this file"),
            ("services: {a: {image: b, devices: ['/dev/a:/dev/b:x']}}", "malformed device"),
            ("services: {a: {image: b, stop_grace_period: soon}}", "is not a duration"),
            ("services: {a: {image: b, healthcheck: {test: x, interval: soon}}}", "is not a duration"),
            (
                f"services: {{a: {{image: b, healthcheck: {{test: x, interval: {'9' * 400}h}}}}}}",
                "services.a.healthcheck: '9999999999999999999999999999999999999999' is too long a duration",
            ),
            (f"services: {{a: {{image: b, mem_limit: {'9' * 400}m}}}}", "services.a.mem_limit: '99999"),
            ("services: {a: {image: b, healthcheck: {test: []}}}", "services.a.healthcheck: malformed test []"),
            ("services: {a: {image: b, ports: ['20-10:20-10']}}", "services.a.ports: malformed port '20-10'"),
            (
                "services: {a: {image: b, secrets: [{source: s, uid: me}]}}\nsecrets: {s: {file: s}}",
                "services.a.secrets: uid: expected a whole number from 0, found 'me'",
            ),
            (
                "services: {a: {image: b, secrets: [{source: s, mode: r}]}}\nsecrets: {s: {file: s}}",
                "services.a.secrets: 'r' is not a mode",
            ),
            ("services: {a: {image: b, volumes: ['./d:d']}}", "services.a.volumes: the target 'd' is not"),
            ("services: {a: {image: b, tmpfs: ''}}", "services.a.tmpfs: the target '' is not an absolute path"),
            ("services: {a: {image: b, tmpfs: '/t:uid=me'}}", "services.a.tmpfs: uid: expected a whole number"),
            ("services: {a: {image: b, tmpfs: '/t:mode=rw'}}", "services.a.tmpfs: 'rw' is not a mode"),
            (
                "services: {a: {image: b, env_file: [{path: x, format: json}]}}",
                "services.a.env_file: x: there is no format json",
            ),
        ],
    )
    def test_a_malformed_file(self, driver: CommandHooks, tmp_path: Path, text: str, message: str) -> None:
        file = tmp_path / "compose.yml"
        file.write_text(text)
        assert message in str(self.run(driver, "convert", str(file)).exception)

    def test_words_of_docker_compose(self, driver: CommandHooks) -> None:
        for words, hint in ((["up", "-d"], "then: kurma up pods.yml"), (["logs", "--help"], "kurma logs POD")):
            error = self.run(driver, *words).exception
            assert isinstance(error, UsageError)
            assert hint in str(error.hint)

    def test_only_a_file_is_replaced(self, driver: CommandHooks, tmp_path: Path) -> None:
        """Not a device or a link, such as /dev/null or /dev/stdout; nor the compose file."""
        file, link = tmp_path / "compose.yml", tmp_path / "link"
        file.write_text("services: {a: {image: b}}")
        link.symlink_to("/dev/null")
        for output in (link, file, tmp_path, tmp_path / "none/pods.yml", "-"):
            done = self.run(driver, "convert", str(file), "-o", str(output))
            assert isinstance(done.exception, KurmaError), output
        assert link.is_symlink()
        assert file.read_text() == "services: {a: {image: b}}"

    def test_paths_are_absolute_in_another_directory(self, driver: CommandHooks, tmp_path: Path) -> None:
        (tmp_path / "compose.yml").write_text("services: {a: {image: b, volumes: ['./site:/s']}}")
        (tmp_path / "other").mkdir()
        output = tmp_path / "other/pods.yml"
        self.run(driver, "convert", str(tmp_path / "compose.yml"), "-o", str(output))
        (pod,) = pod_file.read(str(output)).pods
        assert pod["volumes"][0]["source"] == f"{tmp_path}/site"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A ${A}-$$", "1 1-$"),
        ("${N-d}${E-d}${E:-d}", "dd"),
        ("${N:-${A}x}", "1x"),
        ("${A:+there}${E:+no}${E+yes}", "thereyes"),
        ("$N", ""),
    ],
)
def test_variables(text: str, value: str) -> None:
    assert Variables({"A": "1", "E": ""}, lambda _: None).text(text) == value


@pytest.mark.parametrize("text", ["${A", "${}", "${A!x}", "${N:?}"])
def test_malformed_variables(text: str) -> None:
    with pytest.raises(UsageError):
        Variables({"A": "1"}, lambda _: None).text(text)


def test_files_of_variables(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_text("# comment\nexport A=1 # one\nB='$A'\nC=\"$A\"\n\nD=${OUT}\n")
    assert variables_of(str(file), {"OUT": "o"}) == {"A": "1", "B": "$A", "C": "1", "D": "o"}
    assert not is_literal(str(file))


def test_quotes_in_files_of_variables(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    lines = (
        'A="one',
        'two  # no comment" # comment',
        "B='$A",
        "'",
        r'C="a\nb\"c\\ \$A $OUT"',
        "D=it's # a",
        "E=''",
        "F='x'",
    )
    file.write_text("\n".join(lines))
    assert variables_of(str(file), {"OUT": "o"}) == {
        "A": "one\ntwo  # no comment",
        "B": "$A\n",
        "C": 'a\nb"c\\ $A o',
        "D": "it's",
        "E": "",
        "F": "x",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=1\nB='x\nC=2\n", "line 2: B: the value has no closing '"),
        ("A='x'y\n", "line 1: A: 'y' follows the closing '"),
        ("A B=1\n", "line 1: 'A B' cannot be a variable's name"),
    ],
)
def test_malformed_files_of_variables(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.env"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        variables_of(str(file), {})


def test_a_file_of_variables_without_an_end_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(KurmaError, match="cannot be read: it is"):
            is_literal(path)


@pytest.mark.kurma_driver(kurma_compose.compose)
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("mem_limit: many", "services.a.mem_limit: 'many' is not a size"),
        ("stop_grace_period: 5y", "services.a.stop_grace_period: '5y' is not a duration"),
        ("healthcheck: {test: [SHELL, x]}", "services.a.healthcheck: malformed test"),
        ("ports: ['a:80']", "services.a.ports: malformed port 'a'"),
        ("extra_hosts: [name]", "services.a.extra_hosts: malformed line 'name'"),
        ("extra_hosts: {name: }", "services.a.extra_hosts: malformed line 'name='"),
        (
            "volumes: [{source: v, target: /v, volume: {subpath: a/../..}}]",
            "services.a.volumes: volume.subpath: 'a/../..' is not a relative path without ..",
        ),
        ("restart: sometimes", "services.a.restart: 'sometimes' is not a restart policy"),
        (
            "deploy: {restart_policy: {condition: never}}",
            "services.a.deploy: restart_policy.condition: 'never' is not a condition",
        ),
    ],
)
def test_an_error_names_the_key(driver: CommandHooks, tmp_path: Path, key: str, message: str) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(f"services:\n  a:\n    image: x\n    {key}\n")
    with pytest.raises(UsageError) as caught:
        raise CommandContract().run(driver, "convert", str(file)).exception or AssertionError("it was converted")
    assert message in str(caught.value)


@pytest.mark.kurma_driver(kurma_compose.compose)
def test_keys_that_no_service_has_are_named(driver: CommandHooks, tmp_path: Path) -> None:
    keys = ("name", "note", "app", "isolate", "volume")
    lines = "".join(f"    {key}: x\n" for key in keys)
    pods, notes = convert(driver, tmp_path, f"services:\n  a:\n    image: b\n{lines}")
    assert notes == [f"services.a.{key}: is not a key of a service, and is ignored" for key in keys]
    assert pods["a"]["apps"] == [{"name": "a", "image": "docker://docker.io/library/b"}]


@pytest.mark.kurma_driver(kurma_compose.compose)
def test_each_line_of_extra_hosts_has_its_own_form(driver: CommandHooks, tmp_path: Path) -> None:
    lines = ["a:10.0.0.1", "b=10.0.0.2", "c=::1", "d:[::1]"]
    pods, _ = convert(driver, tmp_path, f"services: {{a: {{image: b, extra_hosts: {lines}}}}}")
    found = {one["names"][0]: one["address"] for one in pods["a"]["hosts"]}
    assert found == {"a": "10.0.0.1", "b": "10.0.0.2", "c": "::1", "d": "::1"}


@pytest.mark.kurma_driver(kurma_compose.compose)
def test_a_limit_of_zero_is_none(driver: CommandHooks, tmp_path: Path) -> None:
    limits = "mem_limit: 0, cpus: 0, pids_limit: -1, restart: no"
    pods, notes = convert(driver, tmp_path, f"services: {{a: {{image: b, {limits}}}}}")
    assert notes == []
    assert "isolators" not in pods["a"]["apps"][0]
    assert "annotations" not in pods["a"]


@pytest.mark.parametrize(("text", "number"), [("512m", 512 << 20), ("1.5g", 3 << 29), (7, 7), ("1kb", 1024)])
def test_sizes(text: object, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize(("text", "number"), [("1m30s", 90), ("500ms", 0.5), ("1h", 3600), (7, 7), ("1.5", 1.5)])
def test_durations(text: object, number: float) -> None:
    assert seconds(text) == number


@pytest.mark.parametrize("text", ["", "fast", "1d", "5s later"])
def test_malformed_durations(text: str) -> None:
    with pytest.raises(UsageError):
        seconds(text)
