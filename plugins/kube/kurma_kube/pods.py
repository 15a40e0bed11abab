"""Turns Pods into pods of a Kurma pod file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from kurma_core.errors import UsageError
from kurma_kube import containers
from kurma_kube.containers import Volume
from kurma_kube.environment import Values
from kurma_kube.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kurma_kube.objects import Workload

Json = Any
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_DNS_POLICIES = (None, "Default", "ClusterFirst", "ClusterFirstWithHostNet", "None")
_HOST_TYPES = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket"),
}


def converted(
    workload: Workload, values: Values, networks: list[str], note: Callable[[str], None]
) -> list[dict[str, Json]]:
    """The pods of a workload, as a pod file has them.

    :param networks: that the pods join; empty: the default ones.
    :param note: called with one line for each field without a counterpart.
    :raises UsageError: a field is malformed, or cannot be left out without weakening the pod.
    """
    found = []
    for number, name in enumerate(workload.pod_names()):
        pod = _Pod(workload, name, values, note if number == 0 else _quiet).converted(networks)
        if number and pod.pop("ports", None) and number == 1:
            note(f"{workload.title}: {workload.count} pods cannot publish one port: only the first does")
        found.append(pod)
    return found


def pulls(workload: Workload) -> dict[str, str]:
    """The policies of images that containers give, by locator, of a workload that was converted."""
    spec = workload.pod["spec"]
    some = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return {
        containers.locator(one["image"]): containers.PULLS[one["imagePullPolicy"]]
        for one in some
        if one.get("imagePullPolicy") is not None
    }


def _quiet(_: str) -> None:
    """The pods of a Deployment differ in their names alone: the first one has noted everything."""


class _Pod:
    """One Pod, while it is converted."""

    def __init__(self, workload: Workload, name: str, values: Values, note: Callable[[str], None]) -> None:
        self._title = workload.title
        self._note = note
        self._raw = workload.pod.get("spec")
        self._spec = Fields(self._raw, f"{self._title}: spec", note)
        self._labels = dict(workload.pod["metadata"].get("labels") or {})
        self._annotations = dict(workload.pod["metadata"].get("annotations") or {})
        self._values = values
        self._pod: dict[str, Json] = {"name": name, "apps": []}

    def converted(self, networks: list[str]) -> dict[str, Json]:
        spec, pod = self._spec, self._pod
        for key, own in (("userLabels", self._labels), ("userAnnotations", self._annotations)):
            if own:
                pod[key] = own
        self._network(networks)
        if (grace := spec.number("terminationGracePeriodSeconds")) is not None:
            self._annotate("kurma.io/stop-timeout", str(grace))
        self._annotate("kurma.io/restart", containers.restart_policy(spec) or "always")
        security = spec.child("securityContext")
        defaults = containers.pod_security(security)
        self._old_profiles()
        mounted = self._mounted()
        volumes = self._volumes(mounted, defaults.volume_group)
        parts = _split(volumes, mounted)
        isolators = self._namespaces()
        context = containers.PodContext(
            name=str(pod["name"]),
            facts=self._facts(),
            volumes=volumes,
            parts=parts,
            own_pids=not spec.boolean("shareProcessNamespace") and ("pid", "host") not in isolators.items(),
            host_network="host" in pod.get("networks", ()),
        )
        if isolators:
            pod["isolators"] = [{"name": "os/linux/namespaces", "value": isolators}]
        if defaults.sysctls:
            pod.setdefault("isolators", []).append({"name": "os/unix/sysctl", "value": defaults.sysctls})
        for name, value in containers.resources(spec.child("resources")).items():
            pod.setdefault("isolators", []).append({"name": name, "value": value})
        for container in spec.children("initContainers"):
            app, ports = containers.converted(container, context, defaults, self._values, first=True)
            self._add(app, ports)
        before = len(pod["apps"])
        for container in spec.children("containers"):
            self._add(*containers.converted(container, context, defaults, self._values))
        if len(pod["apps"]) == before:
            raise UsageError(f"{self._title}: spec has no containers")
        self._declare(volumes)
        spec.done()
        return pod

    def _old_profiles(self) -> None:
        """:raises UsageError: an annotation chooses an AppArmor profile, as it did before ``appArmorProfile``."""
        for name, value in self._annotations.items():
            if name.startswith(_APPARMOR) and value != "runtime/default":
                raise UsageError(
                    f"{self._title}: annotation {name} has no counterpart",
                    hint="write securityContext.appArmorProfile in the container",
                )

    def _add(self, app: dict[str, Json], ports: list[dict[str, Json]]) -> None:
        self._pod["apps"].append(app)
        if ports:
            self._pod.setdefault("ports", []).extend(ports)

    def _declare(self, volumes: dict[str, Volume]) -> None:
        """Declares the volumes that apps mount as they are; others are the apps' own, or not used."""
        used = {
            mount["volume"]
            for app in self._pod["apps"]
            for mount in app.get("mounts", ())
            if "appVolume" not in mount
        }
        used |= {point["name"] for app in self._pod["apps"] for point in app.get("mountPoints", ())}
        found = [{"name": name, **volume.own} for name, volume in volumes.items() if name in used]
        if found:
            self._pod["volumes"] = found

    def _annotate(self, name: str, value: str) -> None:
        self._pod.setdefault("annotations", []).append({"name": name, "value": value})

    def _facts(self) -> dict[str, str]:
        """Values of ``fieldRef``."""
        account = self._spec.text("serviceAccountName") or "default"
        self._spec.skip("serviceAccount", "automountServiceAccountToken")
        return {
            "metadata.name": str(self._pod["name"]),
            "metadata.namespace": "default",
            "spec.nodeName": os.uname().nodename,
            "spec.serviceAccountName": account,
            **{f"metadata.labels['{name}']": value for name, value in self._labels.items()},
            **{f"metadata.annotations['{name}']": value for name, value in self._annotations.items()},
        }

    def _network(self, networks: list[str]) -> None:
        spec, pod = self._spec, self._pod
        if spec.boolean("hostNetwork"):
            pod["networks"] = ["host"]
        elif networks:
            pod["networks"] = networks
        if (hostname := spec.text("hostname")) is not None:
            pod["hostname"] = hostname
        dns: dict[str, Json] = {}
        if (config := spec.child("dnsConfig")) is not None:
            dns["nameservers"] = config.texts("nameservers")
            dns["search"] = config.texts("searches")
            dns["options"] = [_dns_option(one) for one in config.children("options")]
            config.done()
        policy = spec.text("dnsPolicy")
        if policy not in _DNS_POLICIES:
            raise spec.error("dnsPolicy", f"{policy!r} is not one of {', '.join(map(str, _DNS_POLICIES[1:]))}")
        if policy == "None":
            if not dns.get("nameservers"):
                raise spec.error("dnsPolicy", "None needs nameservers in dnsConfig")
            dns["exact"] = True
        if dns:
            pod["dns"] = {key: value for key, value in dns.items() if value}
        for alias in spec.children("hostAliases"):
            names = {"address": alias.required("ip"), "names": alias.texts("hostnames")}
            pod.setdefault("hosts", []).append(names)
            alias.done()

    def _namespaces(self) -> dict[str, str]:
        found = {}
        for key, name in (("hostPID", "pid"), ("hostIPC", "ipc")):
            if self._spec.boolean(key):
                found[name] = "host"
        if self._spec.boolean("hostUsers") is False:
            self._annotate("kurma.io/userns", "auto")
        return found

    # -- volumes --

    def _mounted(self) -> dict[str, set[str]]:
        """The sub paths that containers mount, by the names of volumes; "": the whole volume."""
        found: dict[str, set[str]] = {}
        some = [one for key in ("initContainers", "containers") for one in _objects(self._raw, key)]
        for mount in (mount for container in some for mount in _objects(container, "volumeMounts")):
            whole = mount.get("subPathExpr") is not None
            part = "" if whole else containers.normal_part(str(mount.get("subPath") or ""))
            found.setdefault(str(mount.get("name")), set()).add(part)
        return found

    def _volumes(self, mounted: Collection[str], group: int | None) -> dict[str, Volume]:
        """:param mounted: names of volumes that containers mount. :param group: of new volumes; None: root's."""
        names: set[str] = set()
        found: dict[str, Volume] = {}
        for fields in self._spec.children("volumes"):
            name = fields.required("name")
            if name in names:
                raise UsageError(f"{self._title}: spec.volumes: two volumes have the name {name}")
            names.add(name)
            try:
                found[name] = volume = self._volume(name, fields)
            except UsageError as error:
                if name in mounted:
                    raise
                self._note(f"{error.message}; ignored, since no container mounts the volume {name}")
                continue
            if group is not None and volume.files is None and volume.own["kind"] == "empty":
                found[name] = Volume({**volume.own, "gid": group})
            elif group is not None and volume.own["kind"] == "named":
                self._spec.note("securityContext.fsGroup", f"volume {name} keeps its group")
            fields.done()
        return found

    def _volume(self, name: str, fields: Fields) -> Volume:
        if (empty := fields.child("emptyDir")) is not None:
            return Volume(_empty(empty))
        if (host := fields.child("hostPath")) is not None:
            return Volume(_host(host))
        if (claim := fields.child("persistentVolumeClaim")) is not None:
            named: dict[str, Json] = {"kind": "named", "volume": claim.required("claimName")}
            if claim.boolean("readOnly"):
                named["readOnly"] = True
            claim.done()
            return Volume(named)
        if (image := fields.child("image")) is not None:
            reference = image.required("reference")
            image.skip("pullPolicy")
            image.done()
            return Volume({"kind": "image", "kurma.io/image": containers.locator(reference)})
        for kind in ("configMap", "secret", "projected"):
            if (source := fields.child(kind)) is not None:
                secrets = self._projected(source) if kind == "projected" else self._files(kind, source, None)
                # Hides what the image has there, and is empty itself.
                empty_one = {"kind": "empty", "mode": "0755", "kurma.io/memory": True, "kurma.io/size": "64Ki"}
                return Volume(empty_one, secrets)
        kinds = [key for key in sorted(fields.unread()) if key != "name"]
        raise UsageError(
            f"{fields.place}: volume {name}: {' '.join(kinds) or 'no source'} has no counterpart",
            hint="use emptyDir, hostPath, persistentVolumeClaim, configMap, secret, projected or image",
        )

    def _projected(self, fields: Fields) -> dict[str, tuple[str, str]]:
        mode = _mode(fields, "defaultMode", None)
        found: dict[str, tuple[str, str]] = {}
        for source in fields.children("sources"):
            for kind in ("configMap", "secret"):
                if (inner := source.child(kind)) is not None:
                    found |= self._files(kind, inner, mode)
            if kinds := source.unread():
                raise UsageError(f"{source.place}: {' '.join(sorted(kinds))} has no counterpart")
        fields.done()
        return found

    def _files(self, kind: str, fields: Fields, mode: str | None) -> dict[str, tuple[str, str]]:
        """Kurma's secrets for the keys of a ConfigMap or Secret, and the files' modes, by the files' paths."""
        mode = _mode(fields, "defaultMode", mode)
        name = fields.text("secretName") or fields.text("name")
        if not name:
            raise UsageError(f"{fields.place} has no name")
        optional = bool(fields.boolean("optional"))
        found = {}
        items = [
            (item.required("key"), item.required("path"), _mode(item, "mode", mode))
            for item in fields.children("items")
        ]
        if not items:
            items = [(key, key, mode) for key in self._values.keys_of(kind, name, optional, fields.place)]
        for key, path, own in items:
            parts = path.split("/")
            if path.startswith("/") or ".." in parts or not all(parts):
                raise fields.error("items", f"{path!r} is not a relative path without ..")
            secret = self._values.file(kind, name, key, optional, fields.place)
            if secret is not None:
                found[path] = (secret, own or "0444")
        fields.done()
        return found


def _split(volumes: dict[str, Volume], mounted: Mapping[str, set[str]]) -> dict[tuple[str, str], str]:
    """Adds a volume for each sub path of an ``emptyDir``, if all its mounts have sub paths, and none is
    in another: then no container can tell the difference.

    :param mounted: the sub paths that containers mount, by the names of volumes.
    :returns: the names of the added volumes, by the name of the ``emptyDir`` and the sub path.
    """
    found: dict[tuple[str, str], str] = {}
    for name, parts in mounted.items():
        volume = volumes.get(name)
        if volume is None or volume.files is not None or volume.own["kind"] != "empty":
            continue
        inside = any(one != other and f"{one}/".startswith(f"{other}/") for one in parts for other in parts)
        if "" in parts or inside:
            continue
        for number, part in enumerate(sorted(parts), 1):
            own = f"{name}-{number}"
            while own in volumes:
                own += "-x"
            volumes[own] = volume
            found[name, part] = own
    return found


def _objects(value: Json, key: str) -> list[Json]:
    """The objects of a list; what is malformed is found when it is converted."""
    found = value.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _dns_option(fields: Fields) -> str:
    name, value = fields.required("name"), fields.quantity("value")
    fields.done()
    return name if value is None else f"{name}:{value}"


def _mode(fields: Fields, key: str, default: str | None) -> str | None:
    number = fields.number(key)
    # Kubernetes has a decimal number here, which YAML may write in octal digits. Files are read-only.
    return default if number is None else f"{number & 0o555:04o}"


def _empty(fields: Fields) -> dict[str, Json]:
    volume: dict[str, Json] = {"kind": "empty", "mode": "0777"}
    medium, size = fields.text("medium") or "", fields.quantity("sizeLimit")
    if medium == "Memory":
        volume["kurma.io/memory"] = True
        if size is not None:
            volume["kurma.io/size"] = size
    elif medium:
        raise fields.error("medium", f"{medium} has no counterpart", hint="write Memory, or nothing")
    elif size is not None:
        fields.note("sizeLimit", "only volumes in memory have a limit; ignored")
    fields.done()
    return volume


def _host(fields: Fields) -> dict[str, Json]:
    volume: dict[str, Json] = {"kind": "host", "source": fields.required("path")}
    kind = fields.text("type") or ""
    if kind == "DirectoryOrCreate":
        volume["kurma.io/create"] = True
    elif kind in _HOST_TYPES:
        right, word = _HOST_TYPES[kind]
        try:
            if not right(os.stat(volume["source"]).st_mode):
                raise fields.error("type", f"{volume['source']} is not {word}")
        except OSError as error:
            hint = f"touch {volume['source']}" if kind == "FileOrCreate" else None
            raise fields.error("path", f"{volume['source']}: {error.strerror}", hint=hint) from None
    elif kind:
        raise fields.error("type", f"{kind} has no counterpart", hint="give devices by kurma run --device")
    fields.done()
    return volume
