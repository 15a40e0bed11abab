"""Every key of a pod file: its type, default and meaning. ``docs/reference/pod_file.md`` has the tables.

Tests hold the tables against the readers of :mod:`kurma_core.appc`, and read a file that has every key.
"""

# ruff: noqa: E501  # a row of a table is one line
from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """One key.

    :param path: its names, with dots between them; ``[]`` stands for each element of a list.
    :param type: of its value, in words.
    :param default: as written in a file; "": the key is required, or nothing.
    :param help: its meaning.
    """

    path: str
    type: str
    default: str
    help: str


_PAIRS = "list of `name` and `value`"
_VOLUME = (
    Key("name", "name", "required", "name of the volume"),
    Key("kind", "`host`, `empty`, `image` or `named`", "required", "`host`: a directory or file of the host. `empty`: a new directory that the pod's apps share; Kurma removes it with the pod. `image`: the files of an image. `named`: a directory that Kurma keeps until it is removed by its name, and creates if it is missing"),
    Key("volume", "text", "`name`", "of a named volume: its name, as `kurma volume list` prints it"),
    Key("source", "path", "required for `host`", "path on the host: absolute, or relative to the pod file with `./` or `../` at its beginning"),
    Key("readOnly", "true or false", "`false`; `true` for `image`", "mounts the volume read-only in every app"),
    Key("recursive", "true or false", "`true`", "of a host volume: includes the mounts below `source`"),
    Key("mode", "octal digits", "`\"0755\"`", "of an empty volume: mode of the directory"),
    Key("uid", "number", "`0`", "of an empty volume: owner of the directory"),
    Key("gid", "number", "`0`", "of an empty volume: group of the directory"),
    Key("kurma.io/idmap", "true or false", "`false`", "of a host volume: in a pod with a user namespace, files have the same owners inside and outside"),
    Key("kurma.io/propagation", "`private`, `rslave` or `rshared`", "`private`", "of a host volume: whether later mounts below `source` propagate: not at all; those of the host to the apps; and those of the apps to the host, for which images need the grant `kurma.io/propagation=rshared`"),
    Key("kurma.io/create", "true or false", "`false`", "of a host volume: makes a missing `source` and its parents as directories, mode 0755"),
    Key("kurma.io/recursive-read-only", "true or false", "`readOnly`", "of a host volume with `readOnly`: whether the mounts below `source` are read-only, too. `true` is refused with another `kurma.io/propagation` than `private`"),
    Key("kurma.io/options", "list of `noexec`, `nosuid`, `nodev`", "`[]`", "of a host, image or named volume: options of its mounts"),
    Key("kurma.io/image", "text", "required for `image`", "of an image volume: locator or ID of the image, as `image` of an app"),
    Key("kurma.io/sub-path", "path", "the whole volume", "of an image or named volume: the directory or file in it that is mounted, as a relative path. A missing directory of a named volume is made"),
    Key("kurma.io/volume", "text", "", "of a host volume in the manifest of a pod: the named volume that the pod file has in its place"),
    Key("kurma.io/memory", "true or false", "`false`", "of an empty volume: keeps it in memory"),
    Key("kurma.io/size", "quantity", "half of the host's memory", "of a volume in memory: its largest size, such as `64Mi`"),
    Key("kurma.io/seed", "object", "", "of an empty volume: the directory of an image whose content, owner and mode the volume starts with. Kurma writes it for volumes that an image declares"),
    Key("kurma.io/seed.app", "name", "required", "app whose image has the directory"),
    Key("kurma.io/seed.path", "path", "required", "path of the directory in the image"),
    Key("kurma.io/fulfills", "list of names", "`[]`", "only in a converted early document: the mount points, of every app, that use the volume"),
)  # fmt: skip
_PORT = (
    Key("name", "name", "required", "name of the port"),
    Key("protocol", "`tcp` or `udp`", "required", "protocol of the port"),
    Key("port", "number", "required", "port that the app listens on"),
    Key("count", "number", "`1`", "number of consecutive ports from `port`"),
    Key("socketActivated", "true or false", "`false`", "Kurma listens, and passes the socket to the app when it starts"),
)  # fmt: skip

_HANDLER = (
    Key("name", "`pre-start` or `post-stop`", "required", "when the command runs; an app has at most one of each"),
    Key("exec", "list of texts", "required", "the command and its arguments"),
)  # fmt: skip
_MOUNT_POINT = (
    Key("name", "name", "required", "name of the mount point; a volume of the same name fulfils it"),
    Key("path", "path", "required", "absolute path in the app"),
    Key("readOnly", "true or false", "`false`", "the app only reads"),
)  # fmt: skip


def _below(path: str, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    return tuple(key._replace(path=f"{path}.{key.path}") for key in keys)


#: The tables, by name.
TABLES: dict[str, tuple[Key, ...]] = {
    "file": (
        Key("pods", "list of objects", "required", "the pods, each with the keys of [a pod](#the-pod)"),
        Key("project", "name", "the file's path", "name of the pods as a whole: `kurma up` finds the pods of a file by it"),
    ),
    "pod": (
        Key("name", "name", "the first app's, with a number", "the pod's name, as `--name`"),
        Key("apps", "list of objects", "required", "the apps of the pod; an empty list makes a pod to which apps are added while it runs"),
        Key("volumes", "list of objects", "`[]`", "directories and files that apps mount"),
        Key("networks", "list of names", "the default networks", "the networks that the pod joins, each as `--net` takes it; an empty list: none"),
        Key("ports", "list of objects", "`[]`", "published ports: ports of the host that lead to ports of apps"),
        Key("hostname", "host name", "the pod's name", "the pod's host name, as `--hostname`"),
        Key("dns", "object", "from the networks, else the host's", "contents of the apps' `/etc/resolv.conf`"),
        Key("dns.nameservers", "list of IP addresses", "`[]`", "name servers, as `--dns`"),
        Key("dns.search", "list of domains", "`[]`", "domains in which names are searched, as `--dns-search`"),
        Key("dns.options", "list of words", "`[]`", "options of resolv.conf, as `--dns-opt`"),
        Key("dns.exact", "true or false", "`false`", "writes these settings alone, without those of networks and the host, as `--dns-exact`"),
        Key("hosts", "list of objects", "`[]`", "further lines of the apps' `/etc/hosts`, as `--hosts-entry`"),
        Key("hosts[].address", "IP address", "required", "address of the names"),
        Key("hosts[].names", "list of names", "required", "names that lead to the address"),
        Key("isolators", _PAIRS, "`[]`", "limits and rights of the whole pod"),
        Key("annotations", _PAIRS, "`[]`", "settings of the pod that a plugin or Kurma reads"),
        Key("userAnnotations", "object of texts", "`{}`", "annotations of your own; Kurma keeps them and does not read them"),
        Key("userLabels", "object of texts", "`{}`", "labels of the pod, as `--label` gives them: `kurma list` shows and filters by them"),
        Key("acKind", "`PodManifest`", "`PodManifest`", "kind of the document"),
        Key("acVersion", "version", "the newest", "version of the App Container specification"),
        Key("kurma.io/uuid", "UUID", "a new one", "the pod's UUID; a converted early document has it"),
    ),
    "app": (
        Key("name", "name", "required", "name of the app in the pod; unique in the pod"),
        Key("image", "text or object", "required", "the image: a locator (`docker://…`), a path (`./web.aci`, relative to the pod file), an App Container name (`example.com/web:1.0`), or an object"),
        Key("image.id", "image ID", "", "ID of the image"),
        Key("image.name", "name", "", "App Container name of the image; an object has `id`, `name` or both"),
        Key("image.labels", _PAIRS, "`[]`", "labels that the image must have, such as `version`, `os` and `arch`"),
        Key("exec", "list of texts", "the image's", "replaces the command and its arguments"),
        Key("args", "list of texts", "the image's", "arguments after the command: of `exec`, else of the image's entry point, as `ARG` of `kurma run`"),
        Key("environmentFiles", "list of paths", "`[]`", "files with lines `NAME=VALUE`, as `--env-file`; paths are relative to the pod file. `environment` replaces their variables"),
        Key("environment", _PAIRS, "`[]`", "variables, besides those of the image; they replace variables of the same name"),
        Key("user", "text", "the image's", "user that runs the command. Without `group`, the groups that the image's files give the user"),
        Key("group", "text", "the image's", "group that runs the command"),
        Key("supplementaryGIDs", "list of numbers", "`[]`", "further groups, besides the image's"),
        Key("workingDirectory", "path", "the image's", "directory in which the command starts"),
        Key("ports", "list of objects", "`[]`", "ports on which the app listens, besides those of the image"),
        *_below("ports[]", _PORT),
        Key("mountPoints", "list of objects", "`[]`", "directories for which the app expects volumes, besides those of the image"),
        *_below("mountPoints[]", _MOUNT_POINT),
        Key("eventHandlers", "list of objects", "`[]`", "commands that run before and after the app, besides those of the image"),
        *_below("eventHandlers[]", _HANDLER),
        Key("isolators", _PAIRS, "`[]`", "limits and rights of the app, besides those of the image: [isolators](isolators.md)"),
        Key("app", "object", "the image's", "replaces the whole `app` of the image: see [below](#what-an-app-runs)"),
        Key("readOnlyRootFS", "true or false", "`false`", "mounts the app's root file system read-only"),
        Key("mounts", "list of objects", "`[]`", "volumes that the app mounts"),
        Key("mounts[].volume", "name", "required", "a volume of the pod"),
        Key("mounts[].path", "path", "required", "absolute path in the app"),
        Key("mounts[].appVolume", "object", "", "a volume of this app alone, in place of the pod's: the keys of [a volume](#volumes)"),
        Key("healthCheck", "object, or `false`", "the image's", "the app's [health check](../howto/health_checks.md); keys that are left out are the image's; `false`: none"),
        Key("healthCheck.command", "list of texts, or text", "the image's", "the command and its arguments; one text: `/bin/sh -c` runs it. Exit code 0 means healthy"),
        Key("healthCheck.http", "object", "", "in place of a command: an HTTP request, which Kurma sends; a status from 200 to 399 means healthy"),
        Key("healthCheck.http.port", "number", "required", "port of the app's server"),
        Key("healthCheck.http.path", "path", "`/`", "path of the request, with the query"),
        Key("healthCheck.http.scheme", "`http` or `https`", "`http`", "protocol; certificates are not verified"),
        Key("healthCheck.http.host", "IP address", "`127.0.0.1`", "address of the server, or `localhost`"),
        Key("healthCheck.http.headers", _PAIRS, "`[]`", "headers in place of, or besides, `Host`, `User-Agent` and `Accept`"),
        Key("healthCheck.tcp", "object", "", "in place of a command: a TCP connection, which Kurma makes and closes; if it can be made, the app is healthy"),
        Key("healthCheck.tcp.port", "number", "required", "port of the app's server"),
        Key("healthCheck.tcp.host", "IP address", "`127.0.0.1`", "address of the server, or `localhost`"),
        Key("healthCheck.interval", "duration", "`30s`", "time between the end of a check and the next one: seconds, or text such as `1m30s`; 0.1 seconds to a week"),
        Key("healthCheck.timeout", "duration", "`30s`", "time after which a check is ended, and counts as failed"),
        Key("healthCheck.startPeriod", "duration", "`0`", "time after the app's start in which failures do not count; a success ends it"),
        Key("healthCheck.startInterval", "duration", "`5s`", "the interval in the start period"),
        Key("healthCheck.retries", "number", "`3`", "failures in a row that make the app unhealthy"),
        Key("healthCheck.onFailure", "`none`, `kill`, `restart` or `stop`", "`none`", "what happens to an unhealthy app: nothing; it is killed, and restart policies decide; its pod is restarted; its pod is stopped"),
        Key("secrets", "list of objects", "`[]`", "[secrets](../howto/secrets.md) that the app gets, each as a file or as a variable"),
        Key("secrets[].name", "name", "required", "name of the secret"),
        Key("secrets[].target", "path", "the name", "path of the file in the app; a relative one is below `/run/secrets`"),
        Key("secrets[].environment", "text", "", "name of a variable that gets the value, in place of a file"),
        Key("secrets[].uid", "number", "`0`", "owner of the file, as the app sees it"),
        Key("secrets[].gid", "number", "`0`", "group of the file"),
        Key("secrets[].mode", "octal digits", "`\"0444\"`", "permissions of the file"),
        Key("annotations", _PAIRS, "`[]`", "settings of the app that a plugin or Kurma reads"),
        Key("kurma.io/isolators", _PAIRS, "`[]`", "only in a converted early document: replace isolators of the same name of the image"),
    ),
    "runs": (
        Key("exec", "list of texts", "`[]`", "the command and its arguments; no shell interprets them"),
        Key("user", "text", "required", "user that runs the command: a number, a name of the image's `/etc/passwd`, or a path in the image whose owner counts"),
        Key("group", "text", "required", "group that runs the command: a number, a name of the image's `/etc/group`, or a path in the image"),
        Key("supplementaryGIDs", "list of numbers", "`[]`", "further groups; the spelling `supplementaryGids` is read, too"),
        Key("workingDirectory", "path", "`/`", "directory in which the command starts"),
        Key("environment", _PAIRS, "`[]`", "variables of the environment"),
        Key("eventHandlers", "list of objects", "`[]`", "commands that run before and after the app"),
        *_below("eventHandlers[]", _HANDLER),
        Key("mountPoints", "list of objects", "`[]`", "directories for which the app expects volumes"),
        *_below("mountPoints[]", _MOUNT_POINT),
        Key("ports", "list of objects", "`[]`", "ports on which the app listens"),
        *_below("ports[]", _PORT),
        Key("isolators", _PAIRS, "`[]`", "limits and rights of the app: [isolators](isolators.md)"),
        Key("userAnnotations", "object of texts", "`{}`", "annotations of your own"),
        Key("userLabels", "object of texts", "`{}`", "labels of your own"),
    ),
    "volume": _VOLUME,
    "published": (
        Key("name", "name", "required", "name of a port of an app, or of `podPort`"),
        Key("hostPort", "number", "required", "port of the host, from 1 to 65535"),
        Key("hostIP", "IP address", "all addresses", "address of the host"),
        Key("podPort", "object", "the app's", "the port in the pod, in place of one that the app declares"),
        *_below("podPort", _PORT),
    ),
}  # fmt: skip

#: Annotations that Kurma reads: the name, where it may be written, the values, the meaning.
ANNOTATIONS = (
    ("kurma.io/restart", "pod, app, image", "`never`, `on-failure`, `always`", "restarts the app after its end; the app's own counts first, then the pod's, then the image's"),
    ("kurma.io/lifecycle", "pod", "`all`, `any`", "the pod ends with its last app, or with its first"),
    ("kurma.io/pod/restart", "pod", "`never`, `on-failure`, `always`", "kurmad restarts the whole pod"),
    (
        "kurma.io/manager",
        "pod",
        "a name",
        "the program that manages the pod: others need `--force` to change it, and `gc` leaves it",
    ),
    (
        "kurma.io/display-name",
        "pod",
        "one line",
        "the name that listings show; `show`, `logs`, `enter`, `stats` and others take it for the pod's name",
    ),
    ("kurma.io/terminal", "app", "`true`, `false`", "gives the app a terminal"),
    ("kurma.io/pid", "app", "`pod`, `own`, `host`, `app:NAME`", "gives the app the pod's PID namespace, one of its own, the host's, or that of another app: [PID namespaces](../howto/changing_pods.md#pid-namespaces)"),
    ("kurma.io/cgroup-parent", "pod", "absolute path, or `NAME.slice`", "makes the pod's cgroup in this one, as `--cgroup-parent` does"),
    ("kurma.io/group-policy", "app", "`merge`, `strict`", "gives the app the groups that the image's `/etc/group` lists its user in, besides `supplementaryGIDs`, or only those of the pod file and the command line; without it: the image's groups, unless a group is named"),
    ("kurma.io/stdin", "app", "`true`, `false`, `once`, `keep`", "gives the app a standard input for clients that attach; it ends when the input of all has ended (`true`), when that of the first has ended or this client has gone (`once`), or never (`keep`)"),
    ("kurma.io/health-check", "app", "JSON, or `none`", "the app's health check, as Kurma stores `healthCheck`: durations in seconds, a command as a list"),
    ("kurma.io/stop-signal", "app", "signal", "asks the app to end by this signal, by name or number, instead of the image's; as `--stop-signal`"),
    ("kurma.io/stop-timeout", "pod", "seconds, or text such as `1m30s`", "time between the stop signal and SIGKILL for the pod's apps, in place of `stop_timeout` of the configuration"),
    ("kurma.io/log-dir", "pod", "path", "directory of the host for the apps' [logs](../howto/changing_pods.md#logs-that-other-programs-rotate), as `--log-dir`"),
    ("kurma.io/log-path", "app", "path", "the app's log below `kurma.io/log-dir`; default: the app's name with `.log`; empty: the app has no log"),
    ("kurma.io/keep-root", "pod", "`true`, `false`", "keeps what the apps wrote to their [roots](../howto/kept_roots.md) after the pod's end, as `--keep-root`"),
    ("kurma.io/make-working-directory", "app", "`true`, `false`", "makes a missing working directory, owned by root, mode 0755, after the volumes are mounted; images from registries have it anyway"),
    ("kurma.io/userns", "pod", "`none`, `auto`, `UID:COUNT`", "gives the pod a user namespace, as `--userns` does"),
)  # fmt: skip
