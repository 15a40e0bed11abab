"""Writes pods of Kurma as Kubernetes objects, which ``kurma kube play`` reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kurma_kube import objects
from kurma_kube.containers import RESTARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kurma_core.models.pod import PodRecord

Json = Any
_OWN = (
    *("kurma.io/restart", "kurma.io/pod/restart", "kurma.io/stop-timeout", "kurma.io/up/project"),
    "kurma.io/up/version",
)


def generated(pods: Iterable[PodRecord], note: Callable[[str], None]) -> str:
    """YAML documents: a PersistentVolumeClaim for each named volume, then the pods.

    :param note: called with one line for each setting without a counterpart.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes a value that is in several places in each of them."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    claims: dict[str, Json] = {}
    documents = [_Pod(pod, claims, note).written() for pod in pods]
    text = yaml.dump_all(
        [*claims.values(), *documents], Dumper=Dumper, sort_keys=False, allow_unicode=True, explicit_start=True
    )
    return str(text)


def _claim(name: str) -> dict[str, Json]:
    # Kubernetes demands a size. Kurma's volumes have none.
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def _by_name(pairs: Json) -> dict[str, Json]:
    """A list of ``name`` and ``value``, as an object."""
    return {one["name"]: one["value"] for one in pairs or ()}


class _Pod:
    """One pod, while it is written."""

    def __init__(self, pod: PodRecord, claims: dict[str, Json], note: Callable[[str], None]) -> None:
        self._pod = pod
        self._claims = claims
        self._write_note = note
        self._volumes: dict[str, dict[str, Json]] = {}

    def _note(self, text: str) -> None:
        self._write_note(f"pod {self._pod.name}: {text}")

    def written(self) -> dict[str, Json]:
        pod, manifest = self._pod, self._pod.manifest
        metadata: dict[str, Json] = {"name": pod.name}
        if not objects.is_name(pod.name):
            self._note("its name cannot be that of an object: change it in the file")
        for key, mine in (("labels", "userLabels"), ("annotations", "userAnnotations")):
            if manifest.get(mine):
                metadata[key] = dict(manifest[mine])
        annotations = _by_name(manifest.get("annotations"))
        for name, value in annotations.items():
            if name not in _OWN and (name, value) != ("kurma.io/userns", "auto"):
                self._note(f"annotation {name} has no counterpart")
        kurmas = annotations.get("kurma.io/restart") or annotations.get("kurma.io/pod/restart") or "never"
        spec: dict[str, Json] = {"restartPolicy": _restart_policy(kurmas)}
        if annotations.get("kurma.io/userns") == "auto":
            spec["hostUsers"] = False
        elif pod.userns is not None:
            self._note("its user namespace has no counterpart, unless it has the annotation kurma.io/userns auto")
        if (text := annotations.get("kurma.io/stop-timeout", "")).isdigit():
            spec["terminationGracePeriodSeconds"] = int(text)
        elif text:
            self._note(f"a stop timeout of {text} has no counterpart: Kubernetes takes whole seconds")
        self._names(spec)
        self._namespaces(spec)
        self._spec_volumes = {volume["name"]: volume for volume in manifest.get("volumes") or ()}
        containers = [self._container(app) for app in manifest["apps"]]
        self._ports(containers)
        self._groups(spec)
        spec["containers"] = containers
        if self._volumes:
            spec["volumes"] = [{"name": name, **source} for name, source in self._volumes.items()]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _groups(self, spec: dict[str, Json]) -> None:
        apps = self._pod.manifest["apps"]
        groups = {tuple(app.get("app", {}).get("supplementaryGIDs") or ()) for app in apps}
        if len(groups) > 1:
            self._note("supplementary groups that differ between apps have no counterpart")
        elif any(groups):
            (own,) = groups
            of_volumes = {volume["gid"] for volume in self._pod.manifest.get("volumes") or () if volume.get("gid")}
            found: dict[str, Json] = {}
            if len(of_volumes) == 1 and of_volumes <= set(own):
                (found["fsGroup"],) = of_volumes
            if others := [group for group in own if group != found.get("fsGroup")]:
                found["supplementalGroups"] = others
            spec.setdefault("securityContext", {}).update(found)
        policies = {_by_name(app.get("annotations")).get("kurma.io/group-policy") for app in apps}
        if policies == {"strict"}:
            spec.setdefault("securityContext", {})["supplementalGroupsPolicy"] = "Strict"
        elif "strict" in policies:
            self._note("a group policy of single apps has no counterpart")

    def _names(self, spec: dict[str, Json]) -> None:
        """The host name, the lines of ``/etc/hosts`` and the name servers that the pod has of its own."""
        pod = self._pod
        if pod.hostname and pod.hostname != pod.name:
            spec["hostname"] = pod.hostname
        if pod.hosts:
            spec["hostAliases"] = [{"ip": address, "hostnames": list(names)} for address, names in pod.hosts]
        if pod.dns_exact:
            spec["dnsPolicy"] = "None"
        config: dict[str, Json] = {}
        for key, mine in (("nameservers", "nameservers"), ("searches", "search")):
            if found := (pod.dns or {}).get(mine):
                config[key] = list(found)
        for option in (pod.dns or {}).get("options", ()):
            name, colon, value = option.partition(":")
            config.setdefault("options", []).append({"name": name, **({"value": value} if colon else {})})
        if config:
            spec["dnsConfig"] = config

    def _namespaces(self, spec: dict[str, Json]) -> None:
        manifest = self._pod.manifest
        own = [_by_name(app.get("annotations")).get("kurma.io/pid") == "own" for app in manifest["apps"]]
        if not all(own) and len(own) > 1:
            spec["shareProcessNamespace"] = True
        networks = [one.network for one in self._pod.attachments if not one.base]
        if self._pod.state == "running" and self._pod.network_namespace is None:
            spec["hostNetwork"] = True
        elif networks != ["default"]:
            options = " ".join(f"--net {name}" for name in networks or ("none",))
            self._note(f"its networks have no counterpart: give kurma kube play {options}")
        for name, value in _by_name(manifest.get("isolators")).items():
            if name == "os/linux/namespaces" and set(value.items()) <= {("pid", "host"), ("ipc", "host")}:
                spec |= {f"host{kind.upper()}": True for kind in value}
            elif name == "os/unix/sysctl":
                found = [{"name": key, "value": str(one)} for key, one in value.items()]
                spec.setdefault("securityContext", {})["sysctls"] = found
            elif name in ("resource/cpu", "resource/memory"):
                _add_resource(spec.setdefault("resources", {}), name, value)
            else:
                self._note(f"isolator {name} of the pod has no counterpart")

    # -- an app --

    def _container(self, app: Json) -> dict[str, Json]:
        name, runs = app["name"], app.get("app") or {}
        image = self._pod.image_names.get(name) or app["image"].get("id")
        found: dict[str, Json] = {"name": name, "image": str(image).removeprefix("docker://")}
        if runs.get("exec"):
            # No variable is replaced: $( is the text.
            found["command"] = [word.replace("$", "$$") if "$(" in word else word for word in runs["exec"]]
        if runs.get("workingDirectory", "/") != "/":
            found["workingDir"] = runs["workingDirectory"]
        environment = [
            {
                "name": one["name"],
                "value": one["value"].replace("$", "$$") if "$(" in one["value"] else one["value"],
            }
            for one in runs.get("environment") or ()
        ]
        mounts: list[dict[str, Json]] = []
        self._mounts(app, mounts)
        self._secrets(app, environment, mounts)
        found |= {key: some for key, some in (("env", environment), ("volumeMounts", mounts)) if some}
        self._rights(app, runs, found)
        self._annotations(app, found)
        for handler in runs.get("eventHandlers") or ():
            self._note(f"app {name}: the handler {handler['name']} has no counterpart")
        return found

    def _annotations(self, app: Json, found: dict[str, Json]) -> None:
        for name, value in _by_name(app.get("annotations")).items():
            if name in ("kurma.io/terminal", "kurma.io/stdin"):
                if value != "false":
                    found["tty" if name == "kurma.io/terminal" else "stdin"] = True
                if value == "once":
                    found["stdinOnce"] = True
            elif name == "kurma.io/restart":
                found["restartPolicy"] = _restart_policy(value)
            elif name == "kurma.io/health-check" and value != "none":
                self._probe(app["name"], json.loads(value), found)
            elif name not in ("kurma.io/pid", "kurma.io/group-policy") and value != "none":
                self._note(f"app {app['name']}: annotation {name} has no counterpart")

    def _probe(self, app: str, check: Json, found: dict[str, Json]) -> None:
        probe = _probe_action(check)
        if probe is None:
            self._note(f"app {app}: the health check of its image has no counterpart")
            return
        if (action := check.get("onFailure", "none")) not in ("kill", "none"):
            self._note(f"app {app}: a failed health check kills the app in Kubernetes, in place of {action}")
        for key, mine, usual in (
            ("periodSeconds", "interval", 30),
            ("timeoutSeconds", "timeout", 30),
            ("initialDelaySeconds", "startPeriod", 0),
            ("failureThreshold", "retries", 3),
        ):
            probe[key] = max(round(check.get(mine, usual)), 0 if key == "initialDelaySeconds" else 1)
        found["readinessProbe" if action == "none" else "livenessProbe"] = probe

    def _rights(self, app: Json, runs: Json, found: dict[str, Json]) -> None:
        security: dict[str, Json] = {}
        for key, mine in (("runAsUser", "user"), ("runAsGroup", "group")):
            text = str(runs.get(mine, ""))
            if text.isdigit():
                security[key] = int(text)
            elif text:
                self._note(f"app {app['name']}: {mine} {text} has no counterpart: Kubernetes takes numbers")
        if app.get("readOnlyRootFS"):
            security["readOnlyRootFilesystem"] = True
        resources: dict[str, Json] = {}
        for name, value in _by_name(runs.get("isolators")).items():
            if name in ("resource/cpu", "resource/memory"):
                _add_resource(resources, name, value)
            elif name == "os/linux/apparmor-profile":
                profile = value["profile"] if isinstance(value, dict) else value
                kind = {"type": "Localhost", "localhostProfile": profile}
                security["appArmorProfile"] = {"type": "Unconfined"} if profile == "unconfined" else kind
            elif name == "os/linux/selinux-context":
                security["seLinuxOptions"] = dict(value)
            elif name in ("kurma.io/masked-paths", "kurma.io/read-only-paths") and value == []:
                security["procMount"] = "Unmasked"
            elif name == "os/linux/privileged":
                security["privileged"] = bool(value)
            elif name == "os/linux/no-new-privileges":
                security["allowPrivilegeEscalation"] = not value
            elif name == "kurma.io/capabilities" and value.keys() <= {"add", "drop"}:
                security["capabilities"] = {key: [_capability(one) for one in some] for key, some in value.items()}
            elif name == "os/linux/capabilities-retain-set":
                security["capabilities"] = {"drop": ["ALL"], "add": [_capability(one) for one in value["set"]]}
            elif name == "os/linux/capabilities-remove-set":
                security["capabilities"] = {"drop": [_capability(one) for one in value["set"]]}
            elif name == "kurma.io/seccomp-profile" and value == "unconfined":
                security["seccompProfile"] = {"type": "Unconfined"}
            elif name == "kurma.io/seccomp-profile" and isinstance(value, dict) and "path" in value:
                security["seccompProfile"] = {"type": "Localhost", "localhostProfile": value["path"]}
            else:
                self._note(f"app {app['name']}: isolator {name} has no counterpart")
        if resources:
            found["resources"] = resources
        if security:
            found["securityContext"] = security

    # -- files --

    def _mounts(self, app: Json, mounts: list[dict[str, Json]]) -> None:
        points = {
            point["path"] for point in (app.get("app") or {}).get("mountPoints") or () if point.get("readOnly")
        }
        for mount in app.get("mounts") or ():
            shared = self._spec_volumes.get(mount["volume"])
            own = mount.get("appVolume") or shared
            if own is None:
                continue
            if own.get("kurma.io/seed") is not None:
                continue  # of the image, which is the same when the pod is played
            name = str(mount["volume"])
            read_only = bool(own.get("readOnly")) or mount["path"] in points
            if own is not shared and (shared is None or _source(own) != _source(shared)):
                name = f"{app['name']}-{name}"
            source = self._source(own)
            if source is None:
                self._note(f"app {app['name']}: the volume at {mount['path']} has no counterpart")
                continue
            while self._volumes.get(name, source) != source:
                name = f"{name}-x"
            self._volumes[name] = source
            found: dict[str, Json] = {"name": name, "mountPath": mount["path"]}
            if own.get("kurma.io/sub-path"):
                found["subPath"] = own["kurma.io/sub-path"]
            if read_only and own["kind"] != "image":
                found["readOnly"] = True
            words = {"rslave": "HostToContainer", "rshared": "Bidirectional"}
            if (word := words.get(own.get("kurma.io/propagation", ""))) is not None:
                found["mountPropagation"] = word
            mounts.append(found)

    def _source(self, volume: Json) -> dict[str, Json] | None:
        """The source of a volume; None: it has no counterpart."""
        if volume.get("kurma.io/volume"):
            name = volume["kurma.io/volume"]
            self._claims.setdefault(name, _claim(name))
            return {"persistentVolumeClaim": {"claimName": name}}
        if volume["kind"] == "host":
            source = {"path": volume["source"]}
            return {
                "hostPath": {**source, "type": "DirectoryOrCreate"} if volume.get("kurma.io/create") else source
            }
        if volume["kind"] == "image":
            return {"image": {"reference": str(volume["kurma.io/image"]).removeprefix("docker://")}}
        if volume["kind"] != "empty":
            return None
        empty: dict[str, Json] = {"medium": "Memory"} if volume.get("kurma.io/memory") else {}
        if volume.get("kurma.io/size"):
            empty["sizeLimit"] = str(volume["kurma.io/size"])
        return {"emptyDir": empty}

    def _secrets(self, app: Json, environment: list[dict[str, Json]], mounts: list[dict[str, Json]]) -> None:
        for secret in app.get("secrets") or ():
            found = objects.parsed_secret(secret["name"])
            if found is None:
                self._note(f"app {app['name']}: secret {secret['name']} has no counterpart")
                continue
            kind, name, key = found
            self._note(f"its {kind} {name} is not written: no command prints its values")
            if "environment" in secret:
                reference = {"secretKeyRef": {"name": name, "key": key}}
                environment.append({"name": secret["environment"], "valueFrom": reference})
                continue
            mode = secret.get("mode", "0444")
            source = {"secretName": name} if kind == "Secret" else {"name": name}
            volume = f"{kind.lower()}-{name.replace('.', '-')}"[:58].rstrip("-") + f"-{mode}"
            self._volumes[volume] = {"secret" if kind == "Secret" else "configMap": source}
            if mode != "0444":
                source["defaultMode"] = int(mode, 8)  # type: ignore[assignment]
            mounts.append({"name": volume, "mountPath": secret["target"], "subPath": key})

    # -- ports --

    def _ports(self, containers: list[dict[str, Json]]) -> None:
        apps = self._pod.manifest["apps"]
        for published in self._pod.manifest.get("ports") or ():
            where, port = 0, published.get("podPort")
            for index, app in enumerate(apps):
                for one in (app.get("app") or {}).get("ports") or ():
                    if port is None and one["name"] == published["name"]:
                        where, port = index, one
            if port is None:
                continue
            for offset in range(port.get("count", 1)):
                found = {"containerPort": port["port"] + offset, "hostPort": published["hostPort"] + offset}
                if port["protocol"] != "tcp":
                    found["protocol"] = port["protocol"].upper()
                if published.get("hostIP"):
                    found["hostIP"] = published["hostIP"]
                containers[where].setdefault("ports", []).append(found)


def _probe_action(check: Json) -> dict[str, Json] | None:
    """The action of a probe; None: the command is that of the image."""
    if check.get("command"):
        return {"exec": {"command": check["command"]}}
    request = check.get("http") or check.get("tcp")
    if not request:
        return None
    found: dict[str, Json] = {"port": request["port"]}
    if request.get("host", "127.0.0.1") != "127.0.0.1":
        found["host"] = request["host"]
    if not check.get("http"):
        return {"tcpSocket": found}
    found["path"] = request.get("path", "/")
    if request.get("scheme") == "https":
        found["scheme"] = "HTTPS"
    if request.get("headers"):
        found["httpHeaders"] = [{"name": one["name"], "value": one["value"]} for one in request["headers"]]
    return {"httpGet": found}


def _source(volume: Json) -> Json:
    """A volume without the settings that a mount has in Kubernetes."""
    mounts = ("name", "readOnly", "kurma.io/propagation", "kurma.io/sub-path", "kurma.io/recursive-read-only")
    return {key: value for key, value in volume.items() if key not in mounts}


def _add_resource(resources: dict[str, Json], isolator: str, value: Json) -> None:
    """Adds an isolator ``resource/cpu`` or ``resource/memory`` to the ``resources`` of a container or pod."""
    for key, mine in (("requests", "request"), ("limits", "limit")):
        if value.get(mine) is not None:
            resources.setdefault(key, {})[isolator.removeprefix("resource/")] = str(value[mine])


def _restart_policy(kurmas: str) -> str:
    return next(word for word, mine in RESTARTS.items() if mine == kurmas)


def _capability(name: str) -> str:
    return name.removeprefix("CAP_")
