"""Turns a service of a compose file into pods of a pod file: a pod with one app, of its name, for each replica."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from kurma_compose import compose_file, counterparts, project, rights, shapes
from kurma_compose.compose_file import is_literal, listed, note_others, pairs, scalar, seconds, size, variables_of
from kurma_core.api.pod_file import environment_file
from kurma_core.appc.types import sanitize_name
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kurma_compose.whole_file import WholeFile

Json = Any
#: Keys that say what Kurma does anyway.
_AS_ALWAYS = {"attach", "expose", "image", "init", "links", "profiles", "scale"}
_ELSEWHERE = "not converted: docs/howto/from_compose.md says what Kurma has for it"
#: Keys of the compose specification that are not converted.
_NOT_CONVERTED = frozenset(
    (
        *(
            "blkio_config",
            "cgroup",
            "cpu_percent",
            "cpu_rt_period",
            "cpu_rt_runtime",
            "credential_spec",
            "develop",
        ),
        *("device_cgroup_rules", "domainname", "driver_opts", "external_links", "gpus", "isolation", "logging"),
        *("mac_address", "mem_reservation", "mem_swappiness", "memswap_limit", "models", "oom_kill_disable"),
        *("platform", "post_start", "pre_stop", "provider", "pull_policy", "runtime", "storage_opt"),
        *("use_api_socket", "volumes_from"),
    )
)
#: Conditions of ``depends_on``, and the annotations that make ``kurma up`` wait.
_CONDITIONS = {
    "service_healthy": project.AFTER_HEALTHY,
    "service_completed_successfully": project.AFTER_SUCCESS,
}
_CONDITIONS_OF_RESTART = {"any": "always", "on-failure": "on-failure"}
_HOST = re.compile(r"([^=:]+)[=:](.+)", re.DOTALL)
_RESTARTS = {"always": "always", "unless-stopped": "always", "on-failure": "on-failure"}


def pods(file: WholeFile) -> list[dict[str, Json]]:
    """The pods of a file's services, in an order in which each follows those that it depends on.

    :raises UsageError: a value is malformed.
    """
    return [pod for name in file.in_order() for pod in _Service(file, name).pods()]


class _Service:
    """One service, while it is converted. Each method ``_KEY`` converts the value of one key, or of several."""

    def __init__(self, file: WholeFile, name: str) -> None:
        self._of = file
        self._name = name
        self._app: dict[str, Json] = {"name": sanitize_name(name), "image": self._image(file.service(name))}
        self._pod: dict[str, Json] = {"name": sanitize_name(name), "apps": [self._app]}
        self._isolators: dict[str, Json] = {}
        self._of_pod: dict[str, Json] = {}
        self._external: list[str] = []

    def pods(self) -> list[dict[str, Json]]:
        service, names = self._of.service(self._name), self._of.names(self._name)
        for key, value in service.items():
            convert = getattr(self, f"_{key}", None) if key in shapes.SERVICE_KEYS else None
            if convert is not None and key != "image":
                if value is not None:
                    self._convert(key, convert, value)
            elif key in _NOT_CONVERTED:
                self._note(key, _ELSEWHERE)
            elif key not in _AS_ALWAYS and not key.startswith("x-"):
                self._note(key, "is not a key of a service, and is ignored")
        if "networks" not in service and "network_mode" not in service:
            self._pod["networks"] = ["default"]
        if self._isolators:
            self._app["isolators"] = [{"name": name, "value": one} for name, one in self._isolators.items()]
        if self._external:
            self._annotate(self._pod, project.KEEP_VOLUMES, " ".join(dict.fromkeys(self._external)))
        if self._of_pod:
            self._pod["isolators"] = [{"name": name, "value": one} for name, one in self._of_pod.items()]
        if names == [self._pod["name"]]:
            return [self._pod]
        if "ports" in self._pod:
            self._note("ports", f"{len(names)} pods cannot publish one port: only the first does")
        pods = [{**self._pod, "name": name} for name in names]
        for number, pod in enumerate(pods):
            pod.setdefault("hostname", self._pod["name"])
            if number:
                pod.pop("ports", None)
        return pods

    def _convert(self, key: str, convert: Callable[[Json], None], value: Json) -> None:
        """:raises UsageError: a value is malformed. The error names its key."""
        place = f"services.{self._name}"
        try:
            convert(value)
        except UsageError as error:
            if error.message.startswith(place):
                raise
            raise UsageError(f"{place}.{key}: {error.message}", hint=error.hint) from None

    def _note(self, key: str, text: str) -> None:
        self._of.note(self._name, key, text)

    def _isolate(self, name: str, **value: Json) -> None:
        self._isolators.setdefault(name, {}).update(value)

    def _annotate(self, into: dict[str, Json], name: str, value: str) -> None:
        others = [one for one in into.get("annotations", ()) if one["name"] != name]
        into["annotations"] = [*others, {"name": name, "value": value}]

    # -- command and user --

    def _image(self, service: Mapping[str, Json]) -> str:
        image = service.get("image")
        if not image and service.get("build") is None:
            raise UsageError(f"services.{self._name}: it has neither image nor build")
        if not image or service.get("build") is not None:
            return counterparts.built_name(image, self._of.project, self._name)
        return str(image) if "://" in image else counterparts.locator(image)

    def _build(self, value: Json) -> None:
        command = counterparts.build_command(value, self._app["image"], self._of.absolute, self._note)
        self._note("build", f"build the image first: {command}")

    def _command(self, value: Json) -> None:
        self._app["args"] = _words(value)

    def _entrypoint(self, value: Json) -> None:
        self._app["exec"] = _words(value)

    def _environment(self, value: Json) -> None:
        found = []
        for name, text in pairs(value).items():
            if text is None and name not in self._of.values:
                self._note("environment", f"{name} is not set here, and is left out")
                continue
            found.append({"name": name, "value": self._of.values[name] if text is None else text})
        mine = {one["name"] for one in found}
        self._app["environment"] = [
            *(one for one in self._app.get("environment", ()) if one["name"] not in mine),
            *found,
        ]

    def _env_file(self, value: Json) -> None:
        copied: dict[str, str] = {}
        for entry in listed(value):
            given = entry if isinstance(entry, dict) else {"path": entry}
            note_others(self._note, "env_file", given, "path", "format", "required")
            path, form = given["path"], given.get("format")
            if form not in (None, "raw"):
                raise UsageError(f"{path}: there is no format {form}", hint="write raw, or leave it out")
            found = self._of.absolute(path)
            if not os.path.exists(found) and given.get("required") is False:
                self._note("env_file", f"{path} is not there, and is left out")
            # A pod file's variables replace those of its files, and here a later file's those of an earlier one.
            elif form == "raw" or is_literal(found):
                if not copied:
                    self._app.setdefault("environmentFiles", []).append(self._of.place(path))
                    continue
                self._note("env_file", f"the variables of {path} are copied, as those of a file before it")
                copied.update(environment_file(found, path))
            else:
                self._note(
                    "env_file", f"the variables of {path} are copied: its quotes mean nothing to a pod file"
                )
                copied.update(variables_of(found, {**copied, **self._of.values}))
        if copied:
            had = {one["name"]: one["value"] for one in self._app.get("environment", ())}
            self._app["environment"] = [{"name": name, "value": one} for name, one in {**copied, **had}.items()]

    def _user(self, value: Json) -> None:
        user, colon, group = scalar(value).partition(":")
        self._app["user"] = user
        if colon:
            self._app["group"] = group

    def _group_add(self, value: Json) -> None:
        numbers = [text for one in value if (text := scalar(one)).isdigit()]
        if len(numbers) < len(value):
            self._note("group_add", "names of groups have no counterpart: write numbers")
        self._app["supplementaryGIDs"] = [int(one) for one in numbers]

    def _working_dir(self, value: Json) -> None:
        self._app["workingDirectory"] = value

    def _read_only(self, value: Json) -> None:
        self._app["readOnlyRootFS"] = bool(value)

    def _stdin_open(self, value: Json) -> None:
        self._annotate(self._app, "kurma.io/stdin", scalar(bool(value)))

    def _tty(self, value: Json) -> None:
        self._annotate(self._app, "kurma.io/terminal", scalar(bool(value)))

    def _stop_signal(self, value: Json) -> None:
        self._annotate(self._app, "kurma.io/stop-signal", scalar(value))

    def _restart(self, value: Json) -> None:
        word, colon, _ = scalar(value).partition(":")
        if colon:
            self._note("restart", "the greatest number of restarts has no counterpart")
        if word in _RESTARTS:
            self._annotate(self._pod, "kurma.io/pod/restart", _RESTARTS[word])
        elif word not in ("no", "false", ""):  # YAML reads an unquoted no as false
            raise UsageError(f"{word!r} is not a restart policy", hint=f"write no, {', '.join(_RESTARTS)}")

    def _depends_on(self, value: Json) -> None:
        conditions = {
            name: ((value[name] if isinstance(value, dict) else None) or {}).get("condition") for name in value
        }
        for name in value if isinstance(value, dict) else ():
            note_others(self._note, f"depends_on.{name}", value[name] or {}, "condition", "required")
        others: dict[str, list[str]] = {}
        for name, word in conditions.items():
            if name in self._of.services():
                others.setdefault(_CONDITIONS.get(str(word), project.AFTER), []).extend(self._of.names(name))
        for mark, pods in others.items():
            if pods:
                self._annotate(self._pod, mark, " ".join(pods))
        words = {str(word) for word in conditions.values() if word}
        for word in sorted(words - {"service_started", *_CONDITIONS}):
            self._note("depends_on", f"{word} has no counterpart: the pods are in this order, and none waits")

    def _healthcheck(self, value: Json) -> None:
        self._app["healthCheck"] = counterparts.health_check(value, self._note)

    def _stop_grace_period(self, value: Json) -> None:
        self._annotate(self._pod, "kurma.io/stop-timeout", f"{seconds(value):g}")

    def _container_name(self, value: Json) -> None:
        if value != self._pod["name"]:
            self._note("container_name", f"the pod is found by the service's name, {self._pod['name']}")

    def _labels(self, value: Json) -> None:
        own = {name: text or "" for name, text in pairs(value).items()}
        self._pod["userLabels"] = {**self._pod.get("userLabels", {}), **own}

    def _label_file(self, value: Json) -> None:
        for path in listed(value):
            found = variables_of(self._of.absolute(path), self._of.values)
            self._pod["userLabels"] = {**found, **self._pod.get("userLabels", {})}

    def _annotations(self, value: Json) -> None:
        self._pod["userAnnotations"] = {name: text or "" for name, text in pairs(value).items()}

    # -- rights and limits --

    def _cap_add(self, value: Json) -> None:
        self._isolate("kurma.io/capabilities", add=[counterparts.capability(one) for one in value])

    def _cap_drop(self, value: Json) -> None:
        self._isolate("kurma.io/capabilities", drop=[counterparts.capability(one) for one in value])

    def _security_opt(self, value: Json) -> None:
        self._isolators |= rights.security(value, self._of.absolute, self._note)

    def _privileged(self, value: Json) -> None:
        if value:
            self._isolators["os/linux/privileged"] = True

    def _devices(self, value: Json) -> None:
        self._isolators |= rights.devices(value, self._note)

    def _sysctls(self, value: Json) -> None:
        self._of_pod["os/unix/sysctl"] = {name: text or "" for name, text in pairs(value).items()}

    def _ulimits(self, value: Json) -> None:
        if found := rights.ulimits(value, self._note):
            self._isolators["kurma.io/ulimits"] = found

    def _namespace(self, kind: str, value: Json) -> None:
        if found := rights.namespaces(kind, value, self._note):
            self._of_pod.setdefault("os/linux/namespaces", {}).update(found)

    def _ipc(self, value: Json) -> None:
        self._namespace("ipc", value)

    def _pid(self, value: Json) -> None:
        self._namespace("pid", value)

    def _uts(self, value: Json) -> None:
        self._namespace("uts", value)

    def _userns_mode(self, value: Json) -> None:
        if value == "host":
            self._annotate(self._pod, "kurma.io/userns", "none")
        else:
            self._note("userns_mode", f"{value} has no counterpart")

    def _cgroup_parent(self, value: Json) -> None:
        if scalar(value).startswith("/") or scalar(value).endswith(".slice"):
            self._annotate(self._pod, "kurma.io/cgroup-parent", scalar(value))
        else:
            self._note("cgroup_parent", f"{value} has no counterpart: write an absolute path, or NAME.slice")

    def _cpu_shares(self, value: Json) -> None:
        self._isolators["os/linux/cpu-shares"] = int(value)

    def _oom_score_adj(self, value: Json) -> None:
        self._isolators["os/linux/oom-score-adj"] = int(value)

    def _cpuset(self, value: Json) -> None:
        self._isolate("kurma.io/linux-resources", cpusetCpus=scalar(value))

    def _cpu_period(self, value: Json) -> None:
        self._isolate("kurma.io/linux-resources", cpuPeriod=_microseconds(value))

    def _cpu_quota(self, value: Json) -> None:
        self._isolate("kurma.io/linux-resources", cpuQuota=_microseconds(value))

    def _cpu_count(self, value: Json) -> None:
        self._cpus(value)

    def _cpus(self, value: Json) -> None:
        if float(value) != 0:  # no limit
            self._isolate("resource/cpu", limit=f"{round(float(value) * 1000)}m")

    def _mem_limit(self, value: Json) -> None:
        if (limit := size(value)) != 0:  # no limit
            self._isolate("resource/memory", limit=str(limit))

    def _pids_limit(self, value: Json) -> None:
        if int(value) > 0:
            self._isolate("kurma.io/pids-limit", limit=int(value))

    def _deploy(self, value: Json) -> None:
        resources = value.get("resources") or {}
        limits = resources.get("limits") or {}
        for key, convert in (("cpus", self._cpus), ("memory", self._mem_limit), ("pids", self._pids_limit)):
            if limits.get(key) is not None:
                convert(limits[key])
        restart = value.get("restart_policy") or {}
        word = restart.get("condition", "any") if restart else "none"
        if word in _CONDITIONS_OF_RESTART:
            self._annotate(self._pod, "kurma.io/pod/restart", _CONDITIONS_OF_RESTART[word])
        elif word != "none":
            raise UsageError(
                f"restart_policy.condition: {word!r} is not a condition",
                hint=f"write none, {', '.join(_CONDITIONS_OF_RESTART)}",
            )
        note_others(self._note, "deploy.restart_policy", restart, "condition")
        note_others(self._note, "deploy.resources.limits", limits, "cpus", "memory", "pids")
        note_others(self._note, "deploy.resources", resources, "limits")
        note_others(self._note, "deploy", value, "resources", "replicas", "restart_policy")

    # -- network --

    def _networks(self, value: Json) -> None:
        found = []
        for name in value:
            options = (value[name] if isinstance(value, dict) else None) or {}
            text = name
            for key, one in options.items():
                if key in ("ipv4_address", "ipv6_address"):
                    text += f",ip={one}"
                elif key == "mac_address":
                    text += f",mac={one}"
                else:
                    self._note(f"networks.{name}.{key}", "no counterpart")
            found.append(text)
        self._pod["networks"] = found

    def _network_mode(self, value: Json) -> None:
        if value not in ("none", "host", "bridge"):
            self._note("network_mode", f"{value} has no counterpart: the pod is in the network default")
        self._pod["networks"] = [] if value == "none" else [value if value == "host" else "default"]

    def _hostname(self, value: Json) -> None:
        self._pod["hostname"] = value

    def _extra_hosts(self, value: Json) -> None:
        # A line is HOST=ADDRESS, or HOST:ADDRESS; an IPv6 address has colons, too.
        whole = isinstance(value, dict)
        for line in [f"{name}={one or ''}" for name, one in value.items()] if whole else map(scalar, value):
            match = _HOST.fullmatch(line)
            if match is None:
                raise UsageError(f"malformed line {line!r}", hint="write HOST=ADDRESS")
            name, address = match.groups()
            if address == "host-gateway":
                self._note("extra_hosts", f"{name}: {address} has no counterpart")
            else:
                self._pod.setdefault("hosts", []).append({"address": address.strip("[]"), "names": [name]})

    def _dns(self, value: Json) -> None:
        self._pod.setdefault("dns", {})["nameservers"] = listed(value)

    def _dns_search(self, value: Json) -> None:
        self._pod.setdefault("dns", {})["search"] = listed(value)

    def _dns_opt(self, value: Json) -> None:
        self._pod.setdefault("dns", {})["options"] = listed(value)

    def _ports(self, value: Json) -> None:
        found = []
        for entry in value:
            if isinstance(entry, dict):
                known = ("target", "published", "protocol", "host_ip", "mode", "name")
                note_others(self._note, "ports", entry, *known)
                address, inside = entry.get("host_ip"), str(entry["target"])
                outside, protocol = str(entry.get("published") or ""), entry.get("protocol", "tcp")
            else:
                text, _, protocol = str(entry).partition("/")
                rest, _, inside = text.rpartition(":")
                address, _, outside = rest.rpartition(":")
            if not outside:
                self._note("ports", f"{entry} has no fixed port of the host: it is not published")
                continue
            first, last = _range(inside)
            host, host_last = _range(outside)
            if last - first != host_last - host:
                self._note(
                    "ports", f"{entry}: the host's ports and the pod's differ in number: it is not published"
                )
                continue
            name = f"p{host}-{protocol or 'tcp'}"
            port = {"name": name, "protocol": protocol or "tcp", "port": first}
            if last > first:
                port["count"] = last - first + 1
            found.append({"name": name, "hostPort": host, "podPort": port})
            if address:
                found[-1]["hostIP"] = address.strip("[]")
        if found:
            self._pod["ports"] = found

    # -- files --

    def _mount(self, path: str, volume: dict[str, Json]) -> None:
        """Adds a volume and its mount. Two mounts share a volume of the host and a named one, if all is equal."""
        if not path.startswith("/"):
            raise UsageError(f"the target {path!r} is not an absolute path")
        volumes = self._pod.setdefault("volumes", [])
        if volume["kind"] == "empty" or volume not in volumes:
            wanted, number = volume["name"], len(volumes)
            while any(one["name"] == volume["name"] for one in volumes):
                volume["name"] = f"{wanted}-{number}"
                number += 1
            volumes.append(volume)
        self._app.setdefault("mounts", []).append({"volume": volume["name"], "path": path})

    def _volumes(self, value: Json) -> None:
        for entry in value:
            if isinstance(entry, dict):
                self._long_volume(entry)
                continue
            source, _, rest = str(entry).partition(":")
            target, _, options = rest.partition(":")
            words = [word for word in options.split(",") if word]
            for word in words:
                if word not in ("ro", "rw"):
                    self._note("volumes", f"{entry}: the option {word} has no counterpart")
            self._volume(source if target else "", target or source, "ro" in words, create=True)

    def _long_volume(self, entry: Mapping[str, Json]) -> None:
        kind = entry.get("type", "volume")
        bind, own = entry.get("bind") or {}, entry.get("volume") or {}
        known = ("type", "source", "target", "read_only", "bind", "tmpfs", "volume", "image")
        note_others(self._note, "volumes", entry, *known)
        note_others(self._note, "volumes.bind", bind, "create_host_path")
        note_others(self._note, "volumes.volume", own, "subpath")
        if kind == "tmpfs":
            options = entry.get("tmpfs") or {}
            self._memory(entry["target"], options.get("size"), options.get("mode"))
        elif kind in ("bind", "volume"):
            source = str(entry.get("source") or "")
            if kind == "bind" and not source.startswith(("/", ".", "~")):
                source = f"./{source}"
            create = bool(bind.get("create_host_path", True))
            part = _part(own.get("subpath"))
            self._volume(source, entry["target"], bool(entry.get("read_only")), create=create, part=part)
        elif kind == "image" and entry.get("source"):
            image = {"name": _named("", entry["target"]), "kind": "image"}
            source = str(entry["source"])
            image["kurma.io/image"] = source if "://" in source else counterparts.locator(source)
            if part := _part((entry.get("image") or {}).get("subpath")):
                image["kurma.io/sub-path"] = part
            self._mount(entry["target"], image)
        else:
            self._note("volumes", f"the type {kind} has no counterpart")

    def _volume(self, source: str, target: str, read_only: bool, *, create: bool, part: str = "") -> None:
        """:param part: path of the directory or file in a named volume that is mounted; empty: all of it."""
        name = _named("", target)
        if part and (not source or source.startswith(("/", ".", "~"))):
            self._note("volumes.volume.subpath", "only a named volume has a counterpart of it")
        if not source:
            self._mount(target, {"name": name, "kind": "empty"})
            return
        volume: dict[str, Json]
        if source.startswith(("/", ".", "~")):
            volume = {"name": name, "kind": "host", "source": self._of.place(source)}
            if create and not os.path.exists(self._of.absolute(source)):
                volume["kurma.io/create"] = True
        else:
            top = self._of.top("volumes", source)
            own = top.get("name") or (
                source if top.get("external") else f"{self._of.project}-{sanitize_name(source)}"
            )
            volume = {"name": sanitize_name(source), "kind": "named", "volume": own}
            if part:
                volume["kurma.io/sub-path"] = part
            if top.get("external"):
                self._external.append(str(own))
        if read_only:
            volume["readOnly"] = True
        self._mount(target, volume)

    def _tmpfs(self, value: Json) -> None:
        for entry in listed(value):
            path, _, options = entry.partition(":")
            given = pairs([one for one in options.split(",") if one])
            for key in given.keys() - {"size", "mode", "uid", "gid"}:
                self._note("tmpfs", f"the option {key} has no counterpart")
            owner = {str(key): compose_file.whole(given[key] or 0, key) for key in ("uid", "gid") if key in given}
            self._memory(path, given.get("size"), given.get("mode"), owner)

    def _memory(self, path: str, limit: Json, mode: Json, owner: Mapping[str, Json] | None = None) -> None:
        volume: dict[str, Json] = {"name": _named("", path), "kind": "empty"}
        volume |= {"mode": "1777" if mode is None else compose_file.mode(mode), "kurma.io/memory": True}
        volume |= owner or {}
        if limit is not None:
            volume["kurma.io/size"] = str(size(limit))
        self._mount(path, volume)

    def _shm_size(self, value: Json) -> None:
        self._memory("/dev/shm", value, None)  # noqa: S108 (a path in the app)

    def _secrets(self, value: Json) -> None:
        top = partial(self._of.top, "secrets")
        for entry in value:
            self._note_file("secrets", entry)
        found = [counterparts.secret(entry, self._of.project, top) for entry in value]
        self._app.setdefault("secrets", []).extend(found)

    def _note_file(self, key: str, entry: Json) -> None:
        """:param entry: of a secret or config: a name, or an object."""
        if isinstance(entry, dict):
            note_others(self._note, key, entry, "source", "target", "uid", "gid", "mode")

    def _configs(self, value: Json) -> None:
        """Mounts files of the host, and contents of the compose file, read-only."""
        for entry in value:
            given = entry if isinstance(entry, dict) else {"source": entry}
            self._note_file("configs", entry)
            name = given["source"]
            top = self._of.top("configs", name)
            path = os.path.join("/", given.get("target") or name)
            if top.get("external"):
                found = counterparts.secret(given, self._of.project, partial(self._of.top, "configs"))
                self._app.setdefault("secrets", []).append({**found, "target": path})
            elif top.get("file") is not None:
                if self._copied_config(given, path, top["file"]):
                    continue
                volume = {"name": _named("configs-", name), "kind": "host"}
                self._mount(path, {**volume, "source": self._of.place(top["file"]), "readOnly": True})
            else:
                found = counterparts.secret(given, self._of.project, lambda _: {})
                own = {**found, "name": self._of.config(name), "target": path}
                self._app.setdefault("configs", []).append(own)

    def _copied_config(self, given: Mapping[str, Json], target: str, file: str) -> bool:
        """Copies a config of a file into the pod file if it has an owner or a mode of its own: a file of the host
        is mounted with those that it has.

        :returns: False: it is to be mounted.
        """
        keys = [key for key in ("uid", "gid", "mode") if given.get(key) is not None]
        if not keys:
            return False
        name, words = given["source"], " and ".join(keys)
        if reason := self._of.copy(name, file):
            self._note(
                f"configs.{name}",
                f"{words} not converted: {reason}; change the file's own, or make a secret of it",
            )
            return False
        found = counterparts.secret(given, self._of.project, lambda _: {})
        self._app.setdefault("configs", []).append({**found, "name": name, "target": target})
        self._note(f"configs.{name}", f"{file} is copied, for its {words}: convert again after it has changed")
        return True


def _named(prefix: str, text: str) -> str:
    """A volume's name. :param text: what it is made of, such as a path; without ASCII letters: of its digest."""
    if not any(one.isalnum() and one.isascii() for one in text):
        text = f"volume-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return prefix + sanitize_name(text)[:40].strip("-")


def _words(value: Json) -> list[str]:
    try:
        return shlex.split(value) if isinstance(value, str) else [scalar(one) for one in value]
    except ValueError as error:
        raise UsageError(f"malformed command {value!r}: {error}") from None


def _part(value: str | None) -> str:
    """``subpath`` of a volume, normalized. :raises UsageError: it leaves the volume."""
    if value and (value.startswith("/") or ".." in value.split("/")):
        raise UsageError(f"volume.subpath: {value!r} is not a relative path without ..")
    return "/".join(name for name in (value or "").split("/") if name not in ("", "."))


def _microseconds(value: Json) -> int:
    """A number of microseconds, or a duration such as ``12ms``."""
    return int(value) if str(value).isdigit() else round(seconds(value) * 1e6)


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise UsageError(f"malformed port {text!r}", hint="write 80, or 8000-8010")
    return int(first), int(last or first)
