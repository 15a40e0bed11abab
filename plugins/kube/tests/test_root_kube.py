"""``kurma kube`` with pods that run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.parametrize("way", ["kurmad"], scope="module")]

OBJECTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {level: debug, app.conf: "a = 1\\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: db}
stringData: {password: hunter2}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: kube-data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
SPEC = """
restartPolicy: Never
containers:
- name: main
  command: [/bin/sh, -c]
  args: ['echo $(LEVEL) $NAME; cat /conf/app.conf /one /sec/password; ls /conf; echo kept >> /data/file; : > /tmp/done; exec sleep 1000']
  env:
  - {name: LEVEL, valueFrom: {configMapKeyRef: {name: settings, key: level}}}
  - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  volumeMounts:
  - {name: conf, mountPath: /conf}
  - {name: conf, mountPath: /one, subPath: level}
  - {name: sec, mountPath: /sec, readOnly: true}
  - {name: data, mountPath: /data}
  - {name: scratch, mountPath: /tmp}
- name: reader
  command: [/bin/sh, -c, 'until ls /tmp/done; do sleep 0.1; done; touch /tmp/x 2>&1; echo $PASSWORD; id -u; exec sleep 1000']
  env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}]
  securityContext: {runAsUser: 1000, runAsNonRoot: true, capabilities: {drop: [ALL]}}
  volumeMounts: [{name: scratch, mountPath: /tmp, readOnly: true}]
volumes:
- {name: conf, configMap: {name: settings}}
- {name: sec, secret: {secretName: db, defaultMode: 0400}}
- {name: data, persistentVolumeClaim: {claimName: kube-data}}
- {name: scratch, emptyDir: {}}
"""  # noqa: E501


class Cluster:
    """A file of objects. :ivar spec: of its Pod ``web``. :ivar objects: the others."""

    def __init__(self, kurma: Any, directory: Path) -> None:
        self.kurma = kurma
        self.file = directory / "web.yml"
        self.spec = yaml.safe_load(SPEC)
        self.objects = list(yaml.safe_load_all(OBJECTS))
        self.kind: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}

    def write(self) -> str:
        # The apps are PID 1 of namespaces of their own, and do not hear SIGTERM.
        self.spec.setdefault("terminationGracePeriodSeconds", 1)
        for container in self.spec["containers"]:
            container["image"] = self.kurma.image
        self.file.write_text(yaml.safe_dump_all([*self.objects, {**self.kind, "spec": self.spec}]))
        return str(self.file)

    def play(self, *options: str) -> list[str]:
        """Its lines."""
        return self.kurma.out("kube", "play", "--net", "none", *options, self.write()).splitlines()

    def log(self, pod: str, app: str, lines: int) -> list[str]:
        """The lines of a log, once it has so many."""

        def found() -> list[str]:
            return self.kurma.out("logs", f"{pod}/{app}").splitlines()

        until(lambda: len(found()) >= lines, f"{lines} lines of {pod}/{app}")
        return found()

    def running(self) -> dict[str, str]:
        """UUIDs of the pods that run, by name."""
        pods = json.loads(self.kurma.out("list", "--format", "json"))
        return {pod["name"]: pod["uuid"] for pod in pods if pod["state"] == "running"}

    def secrets(self) -> list[str]:
        return [one["name"] for one in json.loads(self.kurma.out("secret", "list", "--format", "json"))]


@pytest.fixture
def cluster(kurma: Any, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(kurma, tmp_path)
    yield made
    for name in made.secrets():
        kurma("secret", "rm", "--force", name)
    kurma("network", "rm", "default")  # its bridge stays when its pods have gone


def test_the_objects_of_a_file(cluster: Cluster) -> None:
    cluster.objects.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}})
    assert cluster.play() == ["volume kube-data: created", "pod web: created"]
    assert cluster.log("web", "main", 4) == ["debug web", "a = 1", "debughunter2app.conf", "level"]
    assert cluster.log("web", "reader", 4)[-2:] == ["hunter2", "1000"]
    assert "Read-only file system" in cluster.log("web", "reader", 4)[1]
    assert "hunter2" not in cluster.kurma.out("inspect", "web")

    first = cluster.running()
    assert cluster.play() == ["pod web: unchanged"]
    cluster.objects[0]["data"]["app.conf"] = "a = 2\n"
    assert cluster.play() == ["pod web: replaced"]
    assert cluster.running() != first
    assert cluster.log("web", "main", 2)[1] == "a = 2"
    assert len([name for name in cluster.secrets() if name.startswith("kube_configmap_settings_app.conf")]) == 1
    assert cluster.play("--replace") == ["pod web: replaced"]

    assert cluster.kurma.out("kube", "down", str(cluster.file)).splitlines() == [
        "pod web: removed",
        "secret db: removed",
    ]
    assert cluster.secrets() == []
    assert cluster.kurma.out("kube", "down", "--force", str(cluster.file)) == "volume kube-data: removed\n"
    assert cluster.kurma.out("kube", "play", "--down", str(cluster.file)) == ""


def init_containers(cluster: Cluster, *scripts: str) -> None:
    """The file's Pod with init containers, and a container that prints the words that they have written."""
    cluster.objects = []
    mounts = [{"name": "work", "mountPath": "/work"}]

    def container(name: str, script: str) -> dict[str, Any]:
        command = ["/bin/sh", "-c", script]
        return {"name": name, "image": cluster.kurma.image, "command": command, "volumeMounts": mounts}

    cluster.spec = {
        "initContainers": [container(f"init-{number}", script) for number, script in enumerate(scripts)],
        "containers": [container("main", "cat /work/words; exec sleep 1000")],
        "volumes": [{"name": "work", "emptyDir": {}}],
    }


@pytest.mark.full
def test_init_containers_run_one_after_the_other(cluster: Cluster) -> None:
    init_containers(cluster, "echo one >> /work/words", "echo two >> /work/words; exit 3")
    helper = {**cluster.spec["initContainers"][0], "name": "helper", "restartPolicy": "Always"}
    helper["command"] = ["/bin/sh", "-c", "echo helper >> /work/words; exec sleep 1000"]
    cluster.spec["initContainers"].insert(0, helper)
    done = cluster.kurma("kube", "play", "--net", "none", cluster.write())
    assert (done.returncode, done.stdout) == (125, "")
    assert "pod web: app init-1, which runs before the others, has ended with exit code 3" in done.stderr
    assert "kurma logs web/init-1" in done.stderr

    cluster.spec["initContainers"][2]["command"][2] = "echo two >> /work/words"
    assert cluster.play() == ["pod web: replaced"]
    assert cluster.log("web", "main", 3)[1:] == ["one", "two"]
    apps = json.loads(cluster.kurma.out("show", "--format", "json", "web"))["apps"]
    assert list(apps) == ["helper", "main"]
    assert cluster.play() == ["pod web: unchanged"]
    cluster.kurma.out("stop", "web")
    assert cluster.play() == ["pod web: started"]
    assert cluster.kurma.out("kube", "down", str(cluster.file)) == "pod web: removed\n"


@pytest.mark.full
@pytest.mark.parametrize("app", ["init-0", "init-1", "main"])
def test_after_a_kill_the_pod_gets_all_of_its_containers(cluster: Cluster, app: str) -> None:
    """:param app: whose existence is waited for before the command is killed."""
    init_containers(cluster, "echo one >> /work/words", "echo two >> /work/words; sleep 0.5")

    def there() -> bool:
        pods = json.loads(cluster.kurma.out("list", "--format", "json"))
        return any(app in pod["apps"] for pod in pods)

    process = cluster.kurma.popen("kube", "play", "--net", "none", cluster.write())
    until(lambda: process.poll() is not None or there(), f"app {app}")
    process.kill()
    process.communicate()
    cluster.play()
    assert cluster.log("web", "main", 2) == ["one", "two"]
    assert cluster.play() == ["pod web: unchanged"]


def test_the_pods_of_a_deployment(cluster: Cluster) -> None:
    cluster.objects = []
    container = {"name": "main", "command": ["/bin/sleep", "1000"]}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    deployment: dict[str, Any] = {"replicas": 3, "template": {"spec": pod}}
    cluster.kind |= {"apiVersion": "apps/v1", "kind": "Deployment"}
    cluster.spec = {"containers": []}

    def play(replicas: int) -> list[str]:
        deployment["replicas"] = replicas
        container["image"] = cluster.kurma.image
        cluster.file.write_text(yaml.safe_dump({**cluster.kind, "spec": deployment}))
        return cluster.kurma.out("kube", "play", "--net", "none", str(cluster.file)).splitlines()

    assert play(3) == ["pod web-1: created", "pod web-2: created", "pod web-3: created"]
    assert play(1) == ["pod web-2: removed", "pod web-3: removed", "pod web-1: unchanged"]
    assert cluster.running().keys() == {"web-1"}
    text = cluster.file.read_text()
    assert cluster.kurma("kube", "down", "-", input=text).stdout == "pod web-1: removed\n"


def shown(cluster: Cluster) -> Any:
    """The pod without the marks of its file, and without lists whose order means nothing."""
    pod = json.loads(cluster.kurma.out("show", "--format", "json", "web"))
    manifest = pod["manifest"]
    manifest["annotations"] = [one for one in manifest["annotations"] if "/up/" not in one["name"]]
    return {key: pod[key] for key in ("manifest", "hostname", "dns", "dnsExact", "hosts")}


@pytest.mark.full
def test_generated_files_are_played_again(cluster: Cluster, tmp_path: Path) -> None:
    cluster.objects = [one for one in cluster.objects if one["kind"] == "PersistentVolumeClaim"]
    cluster.spec = yaml.safe_load("""
        restartPolicy: OnFailure
        hostname: desk
        terminationGracePeriodSeconds: 7
        hostAliases: [{ip: 10.0.0.5, hostnames: [db, store]}]
        dnsPolicy: "None"
        dnsConfig: {nameservers: [10.0.0.1], searches: [a.example], options: [{name: ndots, value: "2"}]}
        securityContext: {fsGroup: 70, supplementalGroups: [5], supplementalGroupsPolicy: Strict}
        containers:
        - name: main
          command: [/bin/sh, -c, 'echo "$WORD" $$(id -u); exec sleep 1000']
          env: [{name: WORD, value: "$$(a) b"}]
          workingDir: /srv
          stdin: true
          stdinOnce: true
          restartPolicy: Always
          ports: [{containerPort: 80, hostPort: 18093}]
          resources: {limits: {memory: 64Mi}}
          securityContext: {runAsUser: 5, runAsGroup: 6, capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true}
          livenessProbe: {exec: {command: [/bin/true]}, periodSeconds: 5}
          volumeMounts:
          - {name: data, mountPath: /data, readOnly: true}
          - {name: srv, mountPath: /srv}
        volumes:
        - {name: data, persistentVolumeClaim: {claimName: kube-data}}
        - {name: srv, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
    """)
    cluster.kurma.out("kube", "play", cluster.write())
    assert cluster.log("web", "main", 1) == ["$(a) b 5"]
    first = shown(cluster)
    done = cluster.kurma("kube", "generate", "web")
    assert (done.returncode, done.stderr) == (0, "")
    objects = list(yaml.safe_load_all(done.stdout))
    assert [one["kind"] for one in objects] == ["PersistentVolumeClaim", "Pod"]
    cluster.kurma.out("kube", "down", "--force", str(cluster.file))

    again = tmp_path / "again.yml"
    again.write_text(done.stdout)
    played = cluster.kurma("kube", "play", str(again))
    note = "kurma: Pod web: spec.securityContext.fsGroup: volume data keeps its group\n"
    assert (played.returncode, played.stderr) == (0, note)
    assert cluster.log("web", "main", 1) == ["$(a) b 5"]
    assert cluster.kurma.out("kube", "generate", "web") == done.stdout
    assert shown(cluster) == first


def test_sub_paths_of_a_claim_and_an_empty_dir(cluster: Cluster, tmp_path: Path) -> None:
    cluster.objects = [one for one in cluster.objects if one["kind"] == "PersistentVolumeClaim"]
    cluster.spec = yaml.safe_load("""
        restartPolicy: Never
        containers:
        - name: main
          command: [/bin/sh, -c, 'ls -A /a /b; echo one > /a/file; echo two > /b/file; exec sleep 1000']
          volumeMounts:
          - {name: data, mountPath: /a, subPath: x/a}
          - {name: data, mountPath: /b, subPath: b}
          - {name: new, mountPath: /new, subPath: left}
        - name: other
          command: [/bin/sh, -c, 'touch /new/x; until test -e /x/a/file -a -e /b/file; do sleep 0.1; done; cat /x/a/file; exec sleep 1000']
          volumeMounts:
          - {name: data, mountPath: /x, subPath: x, readOnly: true}
          - {name: data, mountPath: /b, subPath: b}
          - {name: new, mountPath: /new, subPath: right}
        volumes:
        - {name: data, persistentVolumeClaim: {claimName: kube-data}}
        - {name: new, emptyDir: {}}
        """)  # noqa: E501
    assert cluster.play() == ["volume kube-data: created", "pod web: created"]
    assert cluster.log("web", "other", 1) == ["one"]
    assert cluster.kurma.out("exec", "web/main", "ls", "-A", "/new") == ""
    text = cluster.kurma.out("kube", "generate", "web")
    cluster.kurma.out("kube", "down", "--force", str(cluster.file))
    again = tmp_path / "again.yml"
    again.write_text(text)
    cluster.kurma.out("kube", "play", "--net", "none", str(again))
    assert cluster.log("web", "other", 1) == ["one"]
    assert cluster.kurma.out("kube", "generate", "web") == text
    cluster.kurma.out("kube", "down", "--force", str(again))


def test_probes_by_http_and_tcp(cluster: Cluster, tmp_path: Path) -> None:
    cluster.objects = []
    probe = {"periodSeconds": 1, "initialDelaySeconds": 60, "failureThreshold": 1, "timeoutSeconds": 5}
    cluster.spec = yaml.safe_load("""
        restartPolicy: Always
        containers:
        - name: main
          command: [/bin/sh, -c, 'echo well > /tmp/well; exec httpd -f -p 8081 -h /tmp']
          ports: [{containerPort: 8081, name: web}]
        - name: tcp
          command: [/bin/sh, -c, 'exec httpd -f -p 8082']
        """)
    main, tcp = cluster.spec["containers"]
    request = {"port": "web", "path": "/well", "httpHeaders": [{"name": "Host", "value": "a.example"}]}
    main["livenessProbe"] = {"httpGet": request, **probe}
    tcp["readinessProbe"] = {"tcpSocket": {"port": 8082}, **probe}
    assert cluster.play() == ["pod web: created"]
    cluster.kurma.out("wait", "--condition", "healthy", "web")
    (pod,) = json.loads(cluster.kurma.out("list", "--format", "json"))
    assert {name: app["health"]["status"] for name, app in pod["apps"].items()} == {
        "main": "healthy",
        "tcp": "healthy",
    }

    text = cluster.kurma.out("kube", "generate", "web")
    written = {one["name"]: one for one in yaml.safe_load(text)["spec"]["containers"]}
    assert written["main"]["livenessProbe"] == {"httpGet": {**request, "port": 8081}, **probe}
    assert written["tcp"]["readinessProbe"] == {"tcpSocket": {"port": 8082}, **probe}
    cluster.kurma.out("exec", "web/main", "rm", "/tmp/well")

    def restarted() -> bool:
        (now,) = json.loads(cluster.kurma.out("list", "--format", "json"))
        return bool(now["restart"]["count"] or now["apps"]["main"]["instance"] > 1)

    until(restarted, "the container is started again")
    cluster.kurma.out("kube", "down", str(cluster.file))
    again = tmp_path / "again.yml"
    again.write_text(text)
    cluster.kurma.out("kube", "play", "--net", "none", str(again))
    assert cluster.kurma.out("kube", "generate", "web") == text
    cluster.kurma.out("kube", "down", str(again))


@pytest.mark.parametrize("file", ["same", pytest.param("another", marks=pytest.mark.full)])
def test_play_waits_for_a_command_that_removes_the_pods(cluster: Cluster, tmp_path: Path, file: str) -> None:
    """:param file: of the command that waits: another file has a Secret and a claim of the same names."""
    script = """
    trap 'touch /see/stopping; until test -e /see/go; do sleep 0.1; done; exit' TERM
    touch /see/up; while :; do sleep 0.1; done
    """
    cluster.spec = {
        "terminationGracePeriodSeconds": 600,
        "containers": [
            {
                "name": "main",
                "command": ["/bin/sh", "-c", script],
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
                "volumeMounts": [{"name": "see", "mountPath": "/see"}, {"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [
            {"name": "see", "hostPath": {"path": str(tmp_path)}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "kube-data"}},
        ],
    }
    cluster.play()
    until((tmp_path / "up").exists, "the trap of the container")
    down = cluster.kurma.popen("kube", "down", "--force", str(cluster.file))
    until((tmp_path / "stopping").exists, "the container stops")
    first, other, lock = str(cluster.file), "web", "configmap/settings"
    if file == "another":
        other, lock = "other", "persistentvolumeclaim/kube-data"
        cluster.file, cluster.objects = tmp_path / "other.yml", cluster.objects[1:]
        cluster.kind = {**cluster.kind, "metadata": {"name": other}}
    play = cluster.kurma.popen("kube", "play", "--net", "none", cluster.write())
    assert play.stderr is not None
    assert f"another command for kube/{lock} runs" in play.stderr.readline()
    (tmp_path / "go").touch()
    removed, _ = down.communicate()
    assert removed.splitlines() == ["pod web: removed", "secret db: removed", "volume kube-data: removed"]
    created, _ = play.communicate()
    assert created.splitlines() == ["volume kube-data: created", f"pod {other}: created"]
    assert play.returncode == 0
    cluster.kurma.out("kube", "down", "--force", str(cluster.file))
    assert cluster.kurma.out("kube", "down", first) == ""


def test_config_maps_of_another_file(cluster: Cluster, tmp_path: Path) -> None:
    settings, *cluster.objects = cluster.objects
    more = tmp_path / "settings.yml"
    more.write_text(yaml.safe_dump(settings))
    done = cluster.kurma("kube", "play", "--net", "none", cluster.write())
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no ConfigMap settings" in done.stderr
    assert cluster.play("--configmap", str(more)) == ["volume kube-data: created", "pod web: created"]
    assert cluster.log("web", "main", 2)[1] == "a = 1"
    # It removes the values of the other file's ConfigMap, too.
    cluster.kurma.out("kube", "down", "--force", str(cluster.file))
    assert cluster.secrets() == []


@pytest.mark.full
@pytest.mark.parametrize("made", ["nothing", "secrets", "volume", "pod"])
def test_after_a_kill_the_next_command_does_the_rest(cluster: Cluster, made: str) -> None:
    """:param made: whose existence is waited for before the command is killed."""
    exists = {
        "nothing": lambda: True,
        "secrets": cluster.secrets,
        "volume": lambda: json.loads(cluster.kurma.out("volume", "list", "--format", "json")),
        "pod": lambda: json.loads(cluster.kurma.out("list", "--format", "json")),
    }[made]
    process = cluster.kurma.popen("kube", "play", "--net", "none", cluster.write())
    until(lambda: process.poll() is not None or exists(), f"{made} of the file")
    process.kill()
    process.communicate()
    cluster.play()
    assert cluster.running().keys() == {"web"}
    assert cluster.play() == ["pod web: unchanged"]

    process = cluster.kurma.popen("kube", "down", "--force", str(cluster.file))
    until(lambda: process.poll() is not None or not cluster.running(), "the end of the pod")
    process.kill()
    process.communicate()
    cluster.kurma.out("kube", "down", "--force", str(cluster.file))
    assert cluster.secrets() == []
    assert json.loads(cluster.kurma.out("list", "--format", "json")) == []
    assert json.loads(cluster.kurma.out("volume", "list", "--format", "json")) == []


@pytest.mark.full
def test_a_power_needs_a_grant(cluster: Cluster) -> None:
    cluster.objects = []
    privileged = {"name": "main", "command": ["/bin/sleep", "1000"], "securityContext": {"privileged": True}}
    cluster.spec = {"containers": [privileged]}
    done = cluster.kurma("kube", "play", "--net", "none", cluster.write())
    assert (done.returncode, done.stdout) == (125, "")
    assert "--grant os/linux/privileged" in done.stderr
    assert cluster.play("--grant", "os/linux/privileged") == ["pod web: created"]

    cluster.spec |= {"hostNetwork": True, "hostPID": True}
    grants = [word for kind in ("net", "pid") for word in ("--grant", f"os/linux/namespaces={kind}")]
    assert cluster.play("--grant", "os/linux/privileged", *grants) == ["pod web: replaced"]
    assert (
        cluster.kurma.out("exec", "web", "readlink", "/proc/self/ns/net")
        == f"{os.readlink('/proc/self/ns/net')}\n"
    )
    written = yaml.safe_load(cluster.kurma.out("kube", "generate", "web"))["spec"]
    assert (written["hostNetwork"], written["hostPID"]) == (True, True)
    assert written["containers"][0]["securityContext"]["privileged"] is True
