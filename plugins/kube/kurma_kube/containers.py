"""Turns containers of Pods into apps of a Kurma pod file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_compose import counterparts, project

from kurma_core.appc.types import is_image_id
from kurma_core.errors import UsageError
from kurma_core.value import field, frozen
from kurma_kube.environment import Environment
from kurma_kube.probes import add_health_check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_kube.environment import Values
    from kurma_kube.fields import Fields

Json = Any
_PROPAGATIONS = {"None": "private", "HostToContainer": "rslave", "Bidirectional": "rshared"}
#: Policies of Kubernetes, and Kurma's.
PULLS = {"Always": "always", "IfNotPresent": "new", "Never": "never"}
RESTARTS = {"Always": "always", "OnFailure": "on-failure", "Never": "never"}
_SELINUX = ("user", "role", "type", "level")


@frozen
class Volume:
    """A volume.

    :param own: as the pod file has it, without its name.
    :param files: of a volume with the files of ConfigMaps and Secrets: Kurma's secret and the mode of each file,
        by its path in the volume. None: of another volume.
    """

    own: Mapping[str, Json]
    files: Mapping[str, tuple[str, str]] | None = None


@frozen
class PodContext:
    """Parts of a pod that its containers share.

    :param facts: values of ``fieldRef``, by path. :param volumes: of the pod, by name.
    :param parts: the volumes that stand for sub paths of an ``emptyDir``, by its name and the sub path.
    :param own_pids: each container has a PID namespace of its own.
    """

    name: str
    facts: Mapping[str, str]
    volumes: Mapping[str, Volume]
    parts: Mapping[tuple[str, str], str]
    own_pids: bool
    host_network: bool


@frozen
class PodSecurity:
    """The security context of a pod, which counts where that of a container says nothing.

    :param groups: further groups of all containers; ``strict``: without those that images give their users.
    :param volume_group: the group of new volumes and of files of ConfigMaps and Secrets; None: root's.
    """

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    strict: bool = False
    volume_group: int | None = None
    non_root: bool = False
    seccomp: Json = None
    apparmor: str | None = None
    selinux: Mapping[str, str] = field(default_factory=dict)
    sysctls: Mapping[str, str] = field(default_factory=dict)


def locator(image: str) -> str:
    """The locator of an image: ``nginx`` is ``docker://docker.io/library/nginx``."""
    if "://" in image or image.startswith(("/", "docker-archive:", "oci:", "oci-archive:")) or is_image_id(image):
        return image
    return counterparts.locator(image)


def restart_policy(fields: Fields) -> str | None:
    """Kurma's restart policy of a pod or a container; None: it says nothing."""
    word = fields.text("restartPolicy")
    if word is not None and word not in RESTARTS:
        raise fields.error("restartPolicy", f"{word!r} is not one of {', '.join(RESTARTS)}")
    return None if word is None else RESTARTS[word]


def pod_security(fields: Fields | None) -> PodSecurity:
    """Reads the security context of a pod."""
    if fields is None:
        return PodSecurity()
    groups = fields.numbers("supplementalGroups")
    volume_group = fields.number("fsGroup")
    if volume_group is not None:
        groups.append(volume_group)
        fields.skip("fsGroupChangePolicy")  # volumes that exist keep their groups
    policy = fields.text("supplementalGroupsPolicy")
    if policy not in (None, "Merge", "Strict"):
        raise fields.error("supplementalGroupsPolicy", f"{policy!r} is not one of Merge, Strict")
    sysctls = {}
    for one in fields.children("sysctls"):
        sysctls[one.required("name")] = one.quantity("value") or ""
        one.done()
    found = PodSecurity(
        user=fields.number("runAsUser"),
        group=fields.number("runAsGroup"),
        groups=tuple(groups),
        strict=policy == "Strict",
        volume_group=volume_group,
        non_root=bool(fields.boolean("runAsNonRoot")),
        seccomp=_seccomp(fields),
        apparmor=_apparmor(fields),
        selinux=_selinux(fields),
        sysctls=sysctls,
    )
    fields.done()
    return found


def converted(
    fields: Fields, pod: PodContext, security: PodSecurity, values: Values, *, first: bool = False
) -> tuple[dict[str, Json], list[dict[str, Json]]]:
    """A container as an app, and the ports that it publishes.

    :param first: it is an init container: it ends before those after it start, unless its own restart policy is
        ``Always``.
    :raises UsageError: a field is malformed, or cannot be left out without weakening the pod.
    """
    name = fields.required("name")
    fields.place = f"{fields.place.partition(':')[0]}: container {name}"
    app: dict[str, Json] = {"name": name, "image": locator(fields.required("image"))}
    policy = fields.text("imagePullPolicy")
    if policy is not None and policy not in PULLS:
        raise fields.error("imagePullPolicy", f"{policy!r} is not one of {', '.join(PULLS)}")
    environment = Environment(fields, pod.facts, values)
    if environment.plain:
        app["environment"] = [{"name": key, "value": value} for key, value in environment.plain.items()]
    secrets: list[dict[str, Json]] = [
        {"name": secret, "environment": key} for key, secret in environment.secrets.items()
    ]
    for key, mine in (("command", "exec"), ("args", "args")):
        if words := fields.texts(key):
            app[mine] = [environment.expanded(word, f"{fields.place}.{key}") for word in words]
    if (directory := fields.text("workingDir")) is not None:
        app["workingDirectory"] = directory
    if fields.boolean("tty"):
        _annotate(app, "kurma.io/terminal", "true")
    once = fields.boolean("stdinOnce")
    if fields.boolean("stdin"):
        _annotate(app, "kurma.io/stdin", "once" if once else "true")
    if pod.own_pids:
        _annotate(app, "kurma.io/pid", "own")
    if (restart := restart_policy(fields)) is not None:
        _annotate(app, "kurma.io/restart", restart)
    ends = first and restart != "always"
    if ends:
        _annotate(app, project.FIRST, "true")
    for mount in fields.children("volumeMounts"):
        _mount(mount, pod, app, secrets, environment)
    _of_group(secrets, security.volume_group)
    if secrets:
        app["secrets"] = secrets
    isolators = resources(fields.child("resources"))
    isolators |= _security(fields.child("securityContext"), app, security, fields)
    if isolators:
        app["isolators"] = [{"name": key, "value": value} for key, value in isolators.items()]
    ports, named = _ports(fields, name, pod)
    add_health_check(fields, app, named)
    fields.done()
    return app, [] if ends else ports


def normal_part(path: str) -> str:
    """A sub path without ``.`` and superfluous slashes."""
    return "/".join(name for name in path.split("/") if name not in ("", "."))


def _annotate(app: dict[str, Json], name: str, value: str) -> None:
    app.setdefault("annotations", []).append({"name": name, "value": value})


# --- files -------------------------------------------------------------------------------------------------------


def _mount(
    fields: Fields, pod: PodContext, app: dict[str, Json], secrets: list[dict[str, Json]], environment: Environment
) -> None:
    """Adds the mount of a volume to the app; files of ConfigMaps and Secrets to ``secrets``."""
    name, path = fields.required("name"), fields.required("mountPath")
    if name not in pod.volumes:
        raise fields.error("name", f"there is no volume {name}")
    part = fields.text("subPath") or ""
    if (pattern := fields.text("subPathExpr")) is not None:
        part = environment.expanded(pattern, fields.place)
    read_only = fields.boolean("readOnly")
    propagation = fields.text("mountPropagation") or "None"
    if propagation not in _PROPAGATIONS:
        raise fields.error("mountPropagation", f"{propagation!r} is not one of {', '.join(_PROPAGATIONS)}")
    fields.done()
    part = normal_part(part)
    if ".." in part.split("/"):
        raise fields.error("subPath", f"{part!r} has ..")
    if (name, part) in pod.parts:
        name, part = pod.parts[name, part], ""
    volume = pod.volumes[name]
    if volume.files is not None:
        if part in volume.files:
            secret, mode = volume.files[part]
            secrets.append({"name": secret, "target": path, "mode": mode})
            return
        for inner, (secret, mode) in volume.files.items():
            if not part or inner.startswith(f"{part}/"):
                below = inner.removeprefix(f"{part}/") if part else inner
                secrets.append({"name": secret, "target": f"{path.rstrip('/')}/{below}", "mode": mode})
        app.setdefault("mounts", []).append({"volume": name, "path": path})
        return
    own: dict[str, Json] = {**volume.own, "name": name}
    if part and own["kind"] == "host":
        own["source"] = f"{own['source'].rstrip('/')}/{part}"
    elif part and own["kind"] in ("image", "named"):
        own["kurma.io/sub-path"] = part
    elif part:
        raise fields.error(
            "subPath", "other mounts of this emptyDir overlap it", hint="use another emptyDir for the sub path"
        )
    if propagation != "None":
        if own["kind"] != "host":
            raise fields.error("mountPropagation", "only volumes of kind hostPath have one")
        own["kurma.io/propagation"] = _PROPAGATIONS[propagation]
    if read_only and own["kind"] == "empty":
        # Only a mount point can be read-only where other apps write to the same volume.
        app.setdefault("mountPoints", []).append({"name": name, "path": path, "readOnly": True})
        return
    if read_only and own["kind"] != "image":
        own["readOnly"] = True
    mount: dict[str, Json] = {"volume": name, "path": path}
    if own != {**volume.own, "name": name}:
        mount["appVolume"] = own
    app.setdefault("mounts", []).append(mount)


def _of_group(secrets: list[dict[str, Json]], group: int | None) -> None:
    """Lets the group of the pod's volumes read files of ConfigMaps and Secrets.

    :param group: None: there is none.
    """
    for secret in secrets if group is not None else ():
        if "target" in secret:
            mode = int(secret["mode"], 8)
            secret |= {"gid": group, "mode": f"{mode | (mode & 0o400) >> 3:04o}"}


# --- rights and limits -------------------------------------------------------------------------------------------


def resources(fields: Fields | None) -> dict[str, Json]:
    """The isolators of a container's resources, or a pod's."""
    found: dict[str, Json] = {}
    if fields is None:
        return found
    for key, mine in (("requests", "request"), ("limits", "limit")):
        inner = fields.child(key)
        if inner is None:
            continue
        for kind in ("cpu", "memory"):
            if (quantity := inner.quantity(kind)) is not None:
                found.setdefault(f"resource/{kind}", {})[mine] = quantity
        inner.done()
    fields.done()
    return found


def _security(fields: Fields | None, app: dict[str, Json], pod: PodSecurity, container: Fields) -> dict[str, Json]:
    """The isolators of a security context. Also sets user, group and root of the app."""
    user, group, non_root, seccomp = pod.user, pod.group, pod.non_root, pod.seccomp
    apparmor, selinux = pod.apparmor, pod.selinux
    found: dict[str, Json] = {}
    if fields is not None:
        user = own if (own := fields.number("runAsUser")) is not None else user
        group = own if (own := fields.number("runAsGroup")) is not None else group
        non_root = own_word if (own_word := fields.boolean("runAsNonRoot")) is not None else non_root
        seccomp = own_profile if (own_profile := _seccomp(fields)) is not None else seccomp
        apparmor = own_name if (own_name := _apparmor(fields)) is not None else apparmor
        selinux = _selinux(fields) or selinux
        if fields.boolean("privileged"):
            found["os/linux/privileged"] = True
        if fields.boolean("allowPrivilegeEscalation") is False:
            found["os/linux/no-new-privileges"] = True
        if fields.boolean("readOnlyRootFilesystem"):
            app["readOnlyRootFS"] = True
        if (capabilities := fields.child("capabilities")) is not None:
            lists = {key: list(map(counterparts.capability, capabilities.texts(key))) for key in ("add", "drop")}
            if any(lists.values()) and "os/linux/privileged" not in found:
                found["kurma.io/capabilities"] = {key: one for key, one in lists.items() if one}
            capabilities.done()
        if (word := fields.text("procMount")) not in (None, "Default", "Unmasked"):
            raise fields.error("procMount", f"{word!r} is not one of Default, Unmasked")
        if word == "Unmasked":
            found["kurma.io/masked-paths"] = found["kurma.io/read-only-paths"] = []
        fields.done()
    if seccomp:
        found["kurma.io/seccomp-profile"] = seccomp
    if apparmor:
        found["os/linux/apparmor-profile"] = {"profile": apparmor}
    if selinux:
        found["os/linux/selinux-context"] = dict(selinux)
    if non_root and not user:
        what = "runAsUser is 0" if user == 0 else "the image may run as root"
        raise UsageError(
            f"{container.place}: runAsNonRoot is true, and {what}", hint="write runAsUser with another number"
        )
    if user is not None:
        app["user"] = str(user)
    if group is not None:
        app["group"] = str(group)
    if pod.groups:
        app["supplementaryGIDs"] = list(pod.groups)
    if pod.strict:
        _annotate(app, "kurma.io/group-policy", "strict")
    return found


#: Values of profiles of seccomp and AppArmor by type, without those of the type Localhost; empty: Kurma's default.
_PROFILES = {"RuntimeDefault": "", "Unconfined": "unconfined"}


def _profile(fields: Fields, key: str) -> tuple[str, str]:
    """The type of a profile, and what a profile of the type Localhost refers to; empty: not given."""
    profile = fields.child(key)
    if profile is None:
        return "", ""
    found = profile.required("type"), profile.text("localhostProfile") or ""
    profile.done()
    return found


def _seccomp(fields: Fields) -> Json:
    """The value of ``kurma.io/seccomp-profile``; empty: the default filter; None: not given."""
    kind, path = _profile(fields, "seccompProfile")
    if not kind:
        return None
    if kind in _PROFILES:
        return _PROFILES[kind]
    if kind != "Localhost" or not path.startswith("/"):
        raise fields.error(
            "seccompProfile", f"{kind} {path}: no counterpart", hint="write RuntimeDefault, or an absolute path"
        )
    return {"path": path}


def _apparmor(fields: Fields) -> str | None:
    """The name of an AppArmor profile; empty: the default one; None: not given."""
    kind, name = _profile(fields, "appArmorProfile")
    if not kind:
        return None
    if kind in _PROFILES:
        return _PROFILES[kind]
    if kind != "Localhost" or not name:
        raise fields.error(
            "appArmorProfile", f"{kind}: no counterpart", hint="write RuntimeDefault, or Localhost and its name"
        )
    return name


def _selinux(fields: Fields) -> dict[str, str]:
    """A context of SELinux; empty: not given, or not whole, which gets a note."""
    options = fields.child("seLinuxOptions")
    if options is None:
        return {}
    found = {key: text for key in _SELINUX if (text := options.text(key))}
    options.done()
    if found.keys() != set(_SELINUX):
        fields.note("seLinuxOptions", f"is ignored: a context needs {', '.join(_SELINUX)}")
        return {}
    return found


# --- ports -------------------------------------------------------------------------------------------------------


def _ports(fields: Fields, name: str, pod: PodContext) -> tuple[list[dict[str, Json]], dict[str, int]]:
    """The ports that a container publishes, and those that have a name."""
    found, named = [], {}
    for port in fields.children("ports"):
        inside, outside = port.number("containerPort", 1), port.number("hostPort")
        protocol, address = (port.text("protocol") or "TCP").lower(), port.text("hostIP")
        own = port.text("name")
        port.done()
        if inside is None:
            raise UsageError(f"{port.place} has no containerPort")
        if own:
            named[own] = inside
        if not outside or pod.host_network:
            continue
        if protocol not in ("tcp", "udp"):
            raise port.error("protocol", f"{protocol.upper()} has no counterpart")
        word = f"{name[:40]}-{outside}-{protocol}"
        published: dict[str, Json] = {
            "name": word,
            "hostPort": outside,
            "podPort": {"name": word, "protocol": protocol, "port": inside},
        }
        if address:
            published["hostIP"] = address
        found.append(published)
    return found, named
