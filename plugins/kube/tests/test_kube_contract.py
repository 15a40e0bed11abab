"""The command keeps the contract of its kind; files are read, and refused by name."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import kurma_kube.plugin
import pytest
import yaml
from kurma_kube import objects, pods
from kurma_kube.environment import Values
from kurma_testing.commands import CommandContract
from kurma_testing.webserver import Page, web_server

from kurma_core.api import pod_file
from kurma_core.errors import KurmaError, UsageError
from kurma_core.hookspecs.command import CommandHooks
from kurma_core.secret_store import LARGEST

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {tier: front}}
spec:
  containers:
  - name: main
    image: nginx
"""
CONFIG = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: '1', b.conf: two}}"
SECRET = "{{apiVersion: v1, kind: Secret, metadata: {{name: s}}, data: {{{}: {}}}}}"
BINARY = "{apiVersion: v1, kind: ConfigMap, metadata: {name: binary}, data: {a: '1'}, binaryData: {b: AAE=}}"


@pytest.mark.kurma_driver(kurma_kube.plugin)
class TestKube(CommandContract):
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("apiVersion: v1\nkind: Node\nmetadata: {name: web}", "the kind Node has no counterpart"),
            ("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: web}", "expected apiVersion v1"),
            (POD.replace("v1", "v2"), "expected apiVersion v1, found v2"),
            (
                POD + "    ports: [{containerPort: 80, hostPort: 70000}]",
                "pods.yml: Pod web: invalid manifest: $.ports[0].hostPort: expected",
            ),
            (
                POD + "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api}\n"
                "spec: {template: {spec: {containers: [{name: a, image: b, workingDir: c}]}}}",
                "pods.yml: Deployment api: invalid manifest: $.apps[0].workingDirectory: expected",
            ),
            (POD + "  initContainers: [{name: a}]", "Pod web: container a has no image"),
            (POD + "---" + POD, "there are two of Pod web"),
            (POD.replace("nginx", "[1]"), "Pod web: container main.image: expected a text, found a list"),
            ("a: [", "not YAML"),
            ("---\n# nothing\n---\n", "has no objects"),
            ("hello", "object 1: expected an object, found a text"),
            ("&a {kind: List, apiVersion: v1, items: [*a]}", "the kind List has no counterpart"),
            (POD.replace("{name: web,", "{name: ../web,"), "metadata.name: '../web' cannot be the name"),
            (POD.replace("{name: web,", f"{{name: {'a' * 300},"), "cannot be the name of an object"),
            (CONFIG + "\n---\n" + CONFIG, "there are two of ConfigMap c"),
            (CONFIG.replace("b.conf", "b/conf"), "ConfigMap c: data: 'b/conf' cannot be a key"),
            (SECRET.format("a b", "eA=="), "Secret s: data: 'a b' cannot be a key"),
            (SECRET.format("a" * 250, "eA=="), "is too long for a key of the Secret s"),
            (SECRET.format("k", base64.b64encode(bytes(LARGEST + 1)).decode()), "data: k is larger than 512 KiB"),
            (
                POD.replace("{name: web,", "{name: web-1,") + "---\n{apiVersion: apps/v1, kind: Deployment, "
                "metadata: {name: web}, spec: {template: {spec: {containers: [{name: a, image: b}]}}}}",
                "Pod web-1 and Deployment web would both be the pod web-1",
            ),
            (
                "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: 10000}}",
                "spec.replicas: 10000 is not a number of pods from 0 to 1000",
            ),
        ],
    )
    def test_a_malformed_file_changes_nothing(
        self, driver: CommandHooks, tmp_path: Path, text: str, message: str
    ) -> None:
        file = tmp_path / "pods.yml"
        file.write_text(text)
        assert message in str(self.run(driver, "play", str(file)).exception)


class Converted:
    """A file's pods. :ivar pods: of the pod file, by name. :ivar notes: lines on standard error."""

    def __init__(self, file: Path, text: str, stored: tuple[str, ...] = ()) -> None:
        file.write_text(text)
        self.notes: list[str] = []
        found = objects.read(str(file), self.notes.append)
        self.values = Values(found, lambda: stored)
        self.pods = {
            pod["name"]: pod
            for one in found.workloads
            for pod in pods.converted(one, self.values, [], self.notes.append)
        }
        for pod in self.pods.values():
            pod_file.request_of(pod, str(file), self.notes.append)

    @property
    def app(self) -> dict[str, Any]:
        app: dict[str, Any] = self.pods["web"]["apps"][0]
        return app


@pytest.fixture
def convert(tmp_path: Path) -> Any:
    def made(*more: str, stored: tuple[str, ...] = (), spec: str = "", container: str = "") -> Converted:
        pod = yaml.safe_load(POD)
        pod["spec"] |= yaml.safe_load(spec) or {}
        pod["spec"]["containers"][0] |= yaml.safe_load(container) or {}
        return Converted(tmp_path / "pods.yml", yaml.safe_dump_all([pod, *map(yaml.safe_load, more)]), stored)

    return made


@pytest.mark.parametrize(
    ("given", "locator"),
    [
        ("nginx:1.27", "docker://docker.io/library/nginx:1.27"),
        ("team/app", "docker://docker.io/team/app"),
        ("quay.io/a/b:1", "docker://quay.io/a/b:1"),
        ("localhost/a:1", "docker://localhost/a:1"),
        ("docker-archive:a.tar", "docker-archive:a.tar"),
        ("/srv/a.aci", "/srv/a.aci"),
    ],
)
def test_images(convert: Any, given: str, locator: str) -> None:
    assert convert(container=f"image: '{given}'").app["image"] == locator


def test_a_container_as_an_app(convert: Any) -> None:
    found = convert(
        spec="""
        hostname: desk
        hostAliases: [{ip: 10.0.0.5, hostnames: [db]}]
        dnsPolicy: None
        dnsConfig:
          nameservers: [10.0.0.1]
          searches: [a.example]
          options: [{name: ndots, value: "2"}, {name: edns0}]
        securityContext: {runAsUser: 5, supplementalGroups: [7], sysctls: [{name: net.core.somaxconn, value: "9"}]}
        volumes: [{name: tmp, emptyDir: {medium: Memory, sizeLimit: 1Mi}}, {name: srv, hostPath: {path: /srv}}]
        """,
        container="""
        command: [serve, "$(A)", $$(A), $(NO)]
        args: [-x]
        env: [{name: A, value: "1"}, {name: B, value: "$(A)2"}]
        workingDir: /tmp
        tty: true
        ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}, {containerPort: 81}]
        resources: {limits: {memory: 64Mi}, requests: {cpu: 0.5}}
        securityContext:
          runAsGroup: 6
          readOnlyRootFilesystem: true
          allowPrivilegeEscalation: false
          capabilities: {add: [NET_ADMIN], drop: [ALL]}
          seccompProfile: {type: Unconfined}
        livenessProbe: {exec: {command: [check]}, periodSeconds: 5}
        volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: srv, mountPath: /srv, subPath: a, readOnly: true}
        """,
    )
    pod, app = found.pods["web"], found.app
    assert app["exec"] == ["serve", "1", "$(A)", "$(NO)"]
    assert (app["args"], app["workingDirectory"], app["readOnlyRootFS"]) == (["-x"], "/tmp", True)
    assert app["environment"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "12"}]
    assert (app["user"], app["group"], app["supplementaryGIDs"]) == ("5", "6", [7])
    assert {one["name"]: one["value"] for one in app["isolators"]} == {
        "resource/memory": {"limit": "64Mi"},
        "resource/cpu": {"request": "0.5"},
        "os/linux/no-new-privileges": True,
        "kurma.io/capabilities": {"add": ["CAP_NET_ADMIN"], "drop": ["ALL"]},
        "kurma.io/seccomp-profile": "unconfined",
    }
    assert app["healthCheck"] == {
        "command": ["check"],
        "interval": 5,
        "timeout": 1,
        "startPeriod": 0,
        "retries": 3,
        "onFailure": "kill",
    }
    assert app["mounts"][1] == {
        "volume": "srv",
        "path": "/srv",
        "appVolume": {"name": "srv", "kind": "host", "source": "/srv/a", "readOnly": True},
    }
    assert pod["volumes"][0]["kurma.io/size"] == "1Mi"
    assert [(one["hostPort"], one["hostIP"], one["podPort"]["port"]) for one in pod["ports"]] == [
        (8080, "127.0.0.1", 80)
    ]
    assert pod["isolators"] == [{"name": "os/unix/sysctl", "value": {"net.core.somaxconn": "9"}}]
    assert pod["dns"]["options"] == ["ndots:2", "edns0"]
    assert (pod["hostname"], pod["userLabels"]) == ("desk", {"tier": "front"})
    assert found.notes == []


def test_every_field_without_a_counterpart_is_named(convert: Any) -> None:
    found = convert(
        spec="{nodeSelector: {a: b}, subdomain: a}",
        container="{lifecycle: {preStop: {}}, livenessProbe: {grpc: {port: 80}}, readinessProbe: {}}",
    )
    assert [note.removeprefix("Pod web: ").split(" ")[0:3:2] for note in found.notes] == [
        ["container", "grpc"],
        ["container", "a"],
        ["container", "has"],
        ["spec.nodeSelector", "no"],
        ["spec.subdomain", "no"],
    ]


@pytest.mark.parametrize(
    ("spec", "container", "message"),
    [
        (
            "{volumes: [{name: a, nfs: {}}]}",
            "{volumeMounts: [{name: a, mountPath: /a}]}",
            "volume a: nfs has no counterpart",
        ),
        ("{securityContext: {runAsNonRoot: true}}", "", "runAsNonRoot is true, and the image may run as root"),
        ("{securityContext: {seccompProfile: {type: Localhost, localhostProfile: a}}}", "", "seccompProfile"),
        ("{restartPolicy: Often}", "", "'Often' is not one of"),
        ("{restartPolicy: [1]}", "", "spec.restartPolicy: expected a text, found a list"),
        ("{dnsPolicy: Some}", "", "spec.dnsPolicy: 'Some' is not one of"),
        ("{dnsPolicy: None}", "", "None needs nameservers"),
        ("{securityContext: {supplementalGroups: [a]}}", "", "supplementalGroups: expected a list of numbers"),
        (
            "{securityContext: {appArmorProfile: {type: Localhost}}}",
            "",
            "appArmorProfile: Localhost: no counterpart",
        ),
        ("{volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]}", "", "two volumes have the name a"),
        ("{initContainers: [{name: main, image: a}]}", "", "main"),
        ("", "{restartPolicy: Often}", "container main.restartPolicy: 'Often' is not one of"),
        (
            "",
            "{env: [{name: A, valueFrom: {resourceFieldRef: {resource: a}}}]}",
            "resourceFieldRef: no counterpart",
        ),
        ("", "{env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}", "there is no Secret s"),
        ("", "{envFrom: [{configMapRef: {name: c}}]}", "there is no ConfigMap c"),
        ("", "{env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}", "status.podIP"),
        ("", "{volumeMounts: [{name: a, mountPath: /a}]}", "there is no volume a"),
        (
            "",
            "{livenessProbe: {httpGet: {port: web}}}",
            "livenessProbe.httpGet.port: the container has no port web",
        ),
        (
            "",
            "{livenessProbe: {tcpSocket: {}}}",
            "expected a number from 1 to 65535, or the name of a port, found null",
        ),
        ("", "{livenessProbe: {tcpSocket: {port: 1}, httpGet: {port: 1}}}", "found httpGet and tcpSocket"),
        ("", "{livenessProbe: {httpGet: {port: 1, scheme: FTP}}}", "'FTP' is not one of HTTP, HTTPS"),
        ("", "{ports: [{containerPort: 1, hostPort: 1, protocol: SCTP}]}", "SCTP has no counterpart"),
        (
            "{volumes: [{name: a, hostPath: {path: /a}}]}",
            "{volumeMounts: [{name: a, mountPath: /a, subPath: ../b}]}",
            "has ..",
        ),
        (
            "{volumes: [{name: a, emptyDir: {}}]}",
            "{volumeMounts: [{name: a, mountPath: /a, subPath: b}, {name: a, mountPath: /b}]}",
            "subPath: other mounts of this emptyDir overlap it",
        ),
        (
            "{volumes: [{name: a, emptyDir: {}}]}",
            "{volumeMounts: [{name: a, mountPath: /a, subPath: b}, {name: a, mountPath: /b, subPath: b/c}]}",
            "subPath: other mounts of this emptyDir overlap it",
        ),
        (
            "{volumes: [{name: a, emptyDir: {}}]}",
            "{volumeMounts: [{name: a, mountPath: /a, subPath: ..}]}",
            "has ..",
        ),
    ],
)
def test_what_would_weaken_or_break_a_pod_is_refused(
    convert: Any, spec: str, container: str, message: str
) -> None:
    with pytest.raises(KurmaError) as refused:
        convert(spec=spec, container=container)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("container", "check", "notes"),
    [
        ("{readinessProbe: {exec: {command: [a]}}}", {}, []),
        (
            "{livenessProbe: &a {exec: {command: [a]}, periodSeconds: 2, failureThreshold: 5}, startupProbe: *a}",
            {"interval": 2, "startPeriod": 10, "startInterval": 2, "retries": 5, "onFailure": "kill"},
            [],
        ),
        (
            "{livenessProbe: {exec: {command: [a]}}, startupProbe: {exec: {}}, readinessProbe: {exec: {}}}",
            {"onFailure": "kill"},
            ["readinessProbe", "startupProbe"],
        ),
        ("{startupProbe: {tcpSocket: {port: 80}}}", None, ["startupProbe"]),
        (
            "{ports: [{containerPort: 81, name: web}], livenessProbe: {httpGet: {port: web, path: 'a b?c=ü#d'}}}",
            {"http": {"port": 81, "scheme": "http", "path": "/a%20b?c=%C3%BC"}, "onFailure": "kill"},
            [],
        ),
        (
            """
            livenessProbe: &a
              httpGet: {port: '80', host: localhost, scheme: HTTPS, httpHeaders: [{name: Host, value: a.example}]}
            startupProbe: *a
            """,
            {
                "http": {
                    "port": 80,
                    "host": "127.0.0.1",
                    "scheme": "https",
                    "path": "/",
                    "headers": [{"name": "Host", "value": "a.example"}],
                },
                "startPeriod": 30,
                "startInterval": 10,
                "onFailure": "kill",
            },
            [],
        ),
        (
            "{readinessProbe: {tcpSocket: {port: 80, host: '::1'}}, startupProbe: {tcpSocket: {port: 80}}}",
            {"tcp": {"port": 80, "host": "::1"}},
            ["startupProbe"],
        ),
        ("{livenessProbe: {httpGet: {port: 80, host: a.example}}}", None, ["livenessProbe.httpGet.host"]),
        ("{livenessProbe: {grpc: {port: 80}}}", None, ["livenessProbe"]),
    ],
)
def test_probes(convert: Any, container: str, check: dict[str, Any] | None, notes: list[str]) -> None:
    found = convert(container=container)
    usual: dict[str, Any] = {} if check is None or check.keys() & {"http", "tcp"} else {"command": ["a"]}
    usual |= {"interval": 10, "timeout": 1, "startPeriod": 0, "retries": 3}
    assert found.app.get("healthCheck") == (None if check is None else {**usual, **check})
    assert [note.partition("main.")[2].partition(":")[0] for note in found.notes] == notes


@pytest.mark.parametrize(
    ("probe", "note"),
    [
        ("{httpGet: {port: 80, host: a}}", "the probe is ignored; write httpHeaders with Host"),
        ("{tcpSocket: {port: 80, host: a}}", "the probe is ignored"),
        ("{}", "a probe without exec, httpGet and tcpSocket has no counterpart, and is ignored"),
    ],
)
def test_notes_of_probes(convert: Any, probe: str, note: str) -> None:
    (found,) = convert(container=f"{{livenessProbe: {probe}}}").notes
    assert found.endswith(note)


def test_sub_paths(convert: Any) -> None:
    found = convert(
        spec="""
        volumes:
        - {name: kept, persistentVolumeClaim: {claimName: data}}
        - {name: new, emptyDir: {medium: Memory}}
        - {name: new-1, emptyDir: {}}
        initContainers: [{name: first, image: a, volumeMounts: [{name: new, mountPath: /n, subPath: a}]}]
        """,
        container="""
        volumeMounts:
        - {name: kept, mountPath: /k, subPath: ./a//b/}
        - {name: kept, mountPath: /whole}
        - {name: new, mountPath: /a, subPath: a/}
        - {name: new, mountPath: /b, subPath: b}
        - {name: new-1, mountPath: /c}
        """,
    )
    first, app = found.pods["web"]["apps"]
    part = {"name": "kept", "kind": "named", "volume": "data", "kurma.io/sub-path": "a/b"}
    assert app["mounts"] == [
        {"volume": "kept", "path": "/k", "appVolume": part},
        {"volume": "kept", "path": "/whole"},
        {"volume": "new-1-x", "path": "/a"},
        {"volume": "new-2", "path": "/b"},
        {"volume": "new-1", "path": "/c"},
    ]
    assert first["mounts"] == [{"volume": "new-1-x", "path": "/n"}]
    own = {one["name"]: one.get("kurma.io/memory") for one in found.pods["web"]["volumes"]}
    assert own == {"kept": None, "new-1": None, "new-1-x": True, "new-2": True}


def test_groups_and_profiles_of_a_pod(convert: Any) -> None:
    found = convert(
        CONFIG,
        spec="""
        securityContext:
          fsGroup: 70
          supplementalGroups: [5]
          supplementalGroupsPolicy: Strict
          appArmorProfile: {type: Localhost, localhostProfile: web}
          seLinuxOptions: {user: u, role: r, type: t, level: s0}
        resources: {limits: {memory: 1Gi}}
        volumes:
        - {name: new, emptyDir: {}}
        - {name: kept, persistentVolumeClaim: {claimName: kept}}
        - {name: conf, configMap: {name: c, defaultMode: 0400}}
        """,
        container="""
        stdin: true
        stdinOnce: true
        restartPolicy: Never
        securityContext: {seLinuxOptions: {level: s0}}
        volumeMounts: [{name: new, mountPath: /n}, {name: kept, mountPath: /k}, {name: conf, mountPath: /c}]
        """,
    )
    pod, app = found.pods["web"], found.app
    assert (app["supplementaryGIDs"], pod["volumes"][0]["gid"]) == ([5, 70], 70)
    assert {(one["gid"], one["mode"]) for one in app["secrets"]} == {(70, "0440")}
    assert {one["name"]: one["value"] for one in app["isolators"]} == {
        "os/linux/apparmor-profile": {"profile": "web"},
        "os/linux/selinux-context": {"user": "u", "role": "r", "type": "t", "level": "s0"},
    }
    assert {one["name"]: one["value"] for one in app["annotations"]} == {
        "kurma.io/stdin": "once",
        "kurma.io/pid": "own",
        "kurma.io/restart": "never",
        "kurma.io/group-policy": "strict",
    }
    assert pod["isolators"] == [{"name": "resource/memory", "value": {"limit": "1Gi"}}]
    assert [note.partition("securityContext.")[2].partition(":")[0] for note in found.notes] == [
        "fsGroup",
        "seLinuxOptions",
    ]


def test_values_of_config_maps_and_secrets(convert: Any) -> None:
    found = convert(
        CONFIG,
        spec="volumes: [{name: v, projected: {sources: [{configMap: {name: c}}, {secret: {name: s}}]}}]",
        container="""
        envFrom: [{configMapRef: {name: c}, prefix: C_}, {secretRef: {name: s}}]
        env: [{name: X, valueFrom: {configMapKeyRef: {name: c, key: none, optional: true}}}]
        volumeMounts: [{name: v, mountPath: /v}]
        """,
        stored=("kube_secret_s_key", "kube_secret_sx_key"),
    )
    assert [one["name"] for one in found.app["environment"]] == ["C_a", "C_b.conf"]
    config = {key: objects.config_name("c", key, value) for key, value in (("a", b"1"), ("b.conf", b"two"))}
    assert found.app["secrets"] == [
        {"name": "kube_secret_s_key", "environment": "key"},
        {"name": config["a"], "target": "/v/a", "mode": "0444"},
        {"name": config["b.conf"], "target": "/v/b.conf", "mode": "0444"},
        {"name": "kube_secret_s_key", "target": "/v/key", "mode": "0444"},
    ]
    assert found.values.files == {config["a"]: b"1", config["b.conf"]: b"two"}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (
            "{env: [{name: A, valueFrom: {configMapKeyRef: {name: binary, key: b}}}]}",
            "key b of ConfigMap binary is in binaryData",
        ),
        ("{env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}", "key k of Secret s has a NUL byte"),
        ("{envFrom: [{secretRef: {name: s}}]}", "key k of Secret s has a NUL byte"),
        ('{env: [{name: A, value: "a\\0b"}]}', "expected a string without NUL"),
    ],
)
def test_values_that_no_variable_can_have_are_refused(convert: Any, container: str, message: str) -> None:
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {k: AAE=}}"
    with pytest.raises(KurmaError) as refused:
        convert(BINARY, secret, container=container)
    assert message in str(refused.value)


def test_binary_data_is_for_files_alone(convert: Any) -> None:
    found = convert(
        BINARY,
        spec="volumes: [{name: v, configMap: {name: binary}}]",
        container="{envFrom: [{configMapRef: {name: binary}}], volumeMounts: [{name: v, mountPath: /v}]}",
    )
    assert found.app["environment"] == [{"name": "a", "value": "1"}]
    assert sorted(found.values.files.values()) == [b"\0\1", b"1"]


def test_a_large_value_of_a_config_map_is_no_file(convert: Any) -> None:
    config = f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c}}, data: {{a: {'x' * (LARGEST + 1)}}}}}"
    with pytest.raises(UsageError, match="key a of ConfigMap c is larger than 512 KiB, and cannot be a file"):
        convert(
            config,
            spec="volumes: [{name: v, configMap: {name: c}}]",
            container="volumeMounts: [{name: v, mountPath: /v}]",
        )


def test_a_host_port_of_zero_publishes_nothing(convert: Any) -> None:
    found = convert(container="{ports: [{containerPort: 80, hostPort: 0}]}")
    assert "ports" not in found.pods["web"]


def test_a_secret_never_gets_into_arguments(convert: Any) -> None:
    with pytest.raises(UsageError) as refused:
        convert(
            container="{args: [$(A)], env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}",
            stored=("kube_secret_s_k",),
        )
    assert "$(A) is a secret" in str(refused.value)


def test_names_of_secrets_tell_their_objects() -> None:
    assert objects.parsed_secret(objects.secret_name("a.b", "c_d.e")) == ("Secret", "a.b", "c_d.e")
    assert objects.parsed_secret(objects.config_name("a", "b_c", b"x")) == ("ConfigMap", "a", "b_c")
    assert objects.parsed_secret("db-password") is None


def test_pods_of_a_deployment(tmp_path: Path) -> None:
    pod = yaml.safe_load(POD)
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "front"},
        "spec": {"replicas": 3, "template": {"metadata": pod["metadata"], "spec": pod["spec"]}},
    }
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [deployment]})
    found = Converted(tmp_path / "front.yml", text)
    assert list(found.pods) == ["front-1", "front-2", "front-3"]
    assert ["ports" in pod for pod in found.pods.values()] == [True, False, False]
    assert found.notes == ["Deployment front: 3 pods cannot publish one port: only the first does"]


def test_a_file_of_an_address() -> None:
    with web_server() as server:
        server.pages["/pods.yml"] = Page(POD.encode())
        server.pages["/moved.yml"] = Page(redirect="http://example.com/pods.yml")
        found = objects.read(server.url("/pods.yml"), lambda _: None)
        assert [one.name for one in found.workloads] == ["web"]
        for path, message in (("/none.yml", "cannot fetch"), ("/moved.yml", "plain HTTP")):
            with pytest.raises(KurmaError) as failed:
                objects.read(server.url(path), lambda _: None)
            assert message in str(failed.value)
    with pytest.raises(UsageError) as refused:
        objects.read("http://example.com/pods.yml", lambda _: None)
    assert "plain HTTP" in str(refused.value)


def test_services_are_ignored(convert: Any) -> None:
    service = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}"
    found = convert(service)
    assert list(found.pods) == ["web"]
    (note,) = found.notes
    assert note.startswith("Service web: no counterpart, ignored; pods find each other by their own names")


def test_volumes_without_a_counterpart_count_only_where_they_are_mounted(convert: Any) -> None:
    """As the token of a service account, which a cluster adds to each Pod."""
    token = "{name: token, projected: {sources: [{serviceAccountToken: {path: t}}, {downwardAPI: {items: []}}]}}"
    data = "{name: data, emptyDir: {}}"
    mount = "volumeMounts: [{name: data, mountPath: /data}]"
    found = convert(spec=f"volumes: [{token}, {data}]", container=mount)
    assert [volume["name"] for volume in found.pods["web"]["volumes"]] == ["data"]
    (note,) = found.notes
    assert note == (
        "Pod web: spec.volumes[0].projected.sources[0]: serviceAccountToken has no counterpart; ignored, since no "
        "container mounts the volume token"
    )
    with pytest.raises(UsageError, match="serviceAccountToken has no counterpart"):
        convert(spec=f"volumes: [{token}]", container=mount.replace("data,", "token,"))
    with pytest.raises(UsageError, match="two volumes have the name token"):
        convert(spec=f"volumes: [{token}, {token}]")
