"""The options of ``run`` and ``prepare``, and the pod request that they make."""

from __future__ import annotations

from kurma_core.cli import health_options, isolator_options, values, volume_options
from kurma_core.cli.command_line import INSECURE_OPTIONS, PASSPHRASE_FILE, Argument, Option, Rest
from kurma_core.errors import ManifestError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.api.pods import AppOverrides, DnsRequest, PodRequest
    from kurma_core.appc.template import PodTemplate
    from kurma_core.models.network import NetworkRequest, PortMapping

    Json = Any

#: The annotation that ``--restart`` sets: :data:`kurma_core.pods.record.document.RESTART_POLICY`.
RESTART = "kurma.io/pod/restart"
#: The annotation that ``--cgroup-parent`` sets: :data:`kurma_core.models.isolator.CGROUP_PARENT`.
CGROUP_PARENT = "kurma.io/cgroup-parent"
#: The annotation that ``--group-policy`` sets: :data:`kurma_core.models.pod.GROUP_POLICY`.
GROUP_POLICY = "kurma.io/group-policy"

#: Arguments and options of ``run`` and ``prepare``, in the order of their help.
POD_OPTIONS: tuple[Argument | Option | Rest, ...] = (
    Argument(
        "image", "IMAGE", "The image: its address, path, name or ID. Leave it out with --pod.", required=False
    ),
    Rest("arguments", "ARG..."),
    Option("pod", "--pod", "Read the pod from FILE, as JSON or YAML; - is standard input.", metavar="FILE"),
    Option("name", "--name", "Name the pod.", metavar="NAME"),
    Option("uuid_file", "--uuid-file", "Write the pod's UUID to FILE.", metavar="FILE"),
    Option("interactive", "--interactive -i", "Connect this command's standard input to the app."),
    Option("tty", "--tty -t", "Allocate a terminal for the app."),
    Option(
        "env",
        "--env -e",
        "Set an environment variable; NAME alone copies the caller's.",
        metavar="NAME[=VALUE]",
        many=True,
    ),
    Option("env_file", "--env-file", "Set the environment variables that FILE lists.", metavar="FILE", many=True),
    Option(
        "bind",
        "-v",
        "Mount a path of the host, or the named volume SOURCE, at TARGET.",
        metavar="SOURCE:TARGET[:OPTION,…]",
        many=True,
    ),
    Option(
        "volume",
        "--volume",
        "Define a volume. Keys: name, kind (host, empty, image or named), source, readOnly, recursive, idmap, "
        "propagation, create, recursiveReadOnly, image, subPath, mode, uid, gid, volume.",
        metavar="KEY=VALUE,…",
        many=True,
    ),
    Option(
        "mount",
        "--mount",
        "Mount a defined volume at PATH; type=image,source=IMAGE mounts an image, type=volume a named volume.",
        metavar="volume=NAME,target=PATH",
        many=True,
    ),
    Option(
        "tmpfs",
        "--tmpfs",
        "Mount an empty directory in memory at TARGET.",
        metavar="TARGET[:size=…][,mode=…]",
        many=True,
    ),
    Option(
        "secret",
        "--secret",
        "Give the app a secret as a file below /run/secrets; type=env: as a variable.",
        metavar="SECRET[,target=PATH][,uid=…][,gid=…][,mode=…]",
        many=True,
    ),
    Option(
        "net",
        "--net --network",
        "Join a network: none, host, or a name from `kurma network list`.",
        metavar="NETWORK[:IFNAME][,ip=…][,mac=…][,arg=KEY=VALUE][,optional]",
        many=True,
    ),
    Option(
        "publish",
        "--publish -p",
        "Publish a port of the pod on the host, or a range: 8000-8009:80-89.",
        metavar="[IP:]HOST:POD[/tcp|udp|sctp]",
        many=True,
    ),
    Option("dns", "--dns", "Use this name server.", metavar="ADDRESS", many=True),
    Option("dns_search", "--dns-search", "Search for names in this domain.", metavar="DOMAIN", many=True),
    Option("dns_opt", "--dns-opt", "Set an option of resolv.conf.", metavar="OPTION", many=True),
    Option("dns_exact", "--dns-exact", "Write these DNS settings alone, without networks' and the host's."),
    Option("hostname", "--hostname", "Set the pod's host name.", metavar="NAME"),
    Option("hosts_entry", "--hosts-entry", "Add a line to /etc/hosts.", metavar="IP=NAME[,NAME]", many=True),
    Option("user", "--user -u", "Run as this user and group, by name or number.", metavar="USER[:GROUP]"),
    Option("group", "--group", "Run as this group, by name or number.", metavar="GROUP"),
    Option(
        "group_add", "--group-add", "Also run with this supplementary group, by number.", metavar="GID", many=True
    ),
    Option(
        "group_policy",
        "--group-policy",
        "Use the groups of the image's /etc/group besides the given ones, or the given ones alone.",
        choices=("merge", "strict"),
    ),
    Option("workdir", "--workdir -w", "Run in this directory of the app's root.", metavar="PATH"),
    Option("exec", "--exec", "Run this program instead of the image's command.", metavar="PATH"),
    Option("read_only", "--read-only", "Make the app's root filesystem read-only."),
    Option("keep_root", "--keep-root", "Keep the files that the apps wrote to their roots until the next start."),
    Option("stop_signal", "--stop-signal", "Ask the app to end by this signal.", metavar="SIGNAL"),
    Option(
        "log_dir",
        "--log-dir",
        "Write the apps' logs to this directory of the host, which Kurma does not rotate.",
        metavar="DIR",
    ),
    Option(
        "log_path",
        "--log-path",
        "Name the app's log file below the pod's --log-dir; empty: no log.",
        metavar="PATH",
    ),
    Option("label", "--label -l", "Add a label to the pod.", metavar="NAME[=VALUE]", many=True),
    Option("annotation", "--annotation", "Add an annotation to the pod.", metavar="NAME=VALUE", many=True),
    Option(
        "restart",
        "--restart",
        "Set when kurmad starts the pod again after its end.",
        choices=("never", "on-failure", "always"),
    ),
    *health_options.OPTIONS,
    *isolator_options.OPTIONS,
    isolator_options.GRANT,
    *isolator_options.OF_THE_POD,
    Option("strict_isolators", "--strict-isolators", "Fail if an isolator cannot be enforced."),
    Option("strict_volumes", "--strict-volumes", "Fail if a mount point of the image has no volume."),
    Option("allow_volume_links", "--allow-volume-links", "Follow symbolic links in the sources of volumes."),
    Option(
        "userns",
        "--userns",
        "Set the pod's user namespace: none, a free range (auto), or this range.",
        metavar="none|auto|UID:COUNT",
    ),
    Option(
        "cgroup_parent",
        "--cgroup-parent",
        "Make the pod's cgroup in this one: an absolute path, or a systemd slice.",
        metavar="PATH|SLICE",
    ),
    Option("stager", "--stager", "Run the pod under this stager, from `kurma stager list`.", metavar="STAGER"),
    Option("renderer", "--renderer", "Make root filesystems by this renderer.", metavar="RENDERER"),
    Option(
        "pull",
        "--pull",
        "Fetch images that the store lacks (new), all (always) or none (never).",
        choices=("new", "always", "never"),
        default="new",
    ),
    INSECURE_OPTIONS,
    PASSPHRASE_FILE,
    Option("verify", "--verify", "Check the content of the images again before use."),
)

#: Those of them that ``app add`` takes, where they say something of one app.
_FOR_AN_APP = (
    *("env", "env_file", "bind", "volume", "mount", "tmpfs", "secret", "user", "group"),
    *("group_add", "group_policy", "workdir", "exec", "read_only"),
    *("stop_signal", "log_path"),
    *health_options.FLAGS,
    *(option.name for option in isolator_options.OPTIONS),
    *(
        "grant",
        "strict_isolators",
        "strict_volumes",
        "allow_volume_links",
        "pull",
        "insecure_options",
        "passphrase_file",
    ),
    "verify",
)


def app_options() -> tuple[Argument | Option | Rest, ...]:
    """Arguments and options of ``app add``, in the order of its help."""
    shared = {option.name: option for option in POD_OPTIONS}
    return (
        Argument("image", "IMAGE", "The image: its address, path, name or ID."),
        shared["arguments"],
        Option("name", "--name", "Name the app; default: the last part of the image's name.", metavar="NAME"),
        Option("interactive", "--interactive -i", "Keep the app's standard input open for clients that attach."),
        shared["tty"],
        isolator_options.APP_PID,
        *(shared[name] for name in _FOR_AN_APP),
        Option("annotation", "--annotation", "Add an annotation to the app.", metavar="NAME=VALUE", many=True),
    )


#: Options that speak of an app, by name of their value: they need a pod of one.
_OF_AN_APP = {
    "interactive": "--interactive",
    "tty": "--tty",
    "env": "--env",
    "env_file": "--env-file",
    "bind": "-v",
    "mount": "--mount",
    "tmpfs": "--tmpfs",
    "secret": "--secret",
    "user": "--user",
    "group": "--group",
    "group_add": "--group-add",
    "group_policy": "--group-policy",
    "workdir": "--workdir",
    "exec": "--exec",
    "read_only": "--read-only",
    "stop_signal": "--stop-signal",
    **health_options.FLAGS,
    **{option.name: option.flags[0] for option in isolator_options.OPTIONS},
    "arguments": "ARG",
}


def pod_request(
    options: dict[str, Any],
    note: Callable[[str], None],
    *,
    ephemeral: bool = False,
    foreground: bool | None = None,
) -> PodRequest:
    """Makes the request for a pod from the options.

    :param options: values of :data:`POD_OPTIONS` by name.
    :param foreground: the pod runs in the foreground of this command; False: in the background, where -i keeps the
        app's input open for clients that attach; None: it is only prepared.
    :raises UsageError: they are malformed, or contradict each other.
    :raises ManifestError: the pod's file is invalid.
    """
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate
    from kurma_core.models.pod import PID, PID_OWN, STDIN
    from kurma_core.named_files import naming

    document = _document(options["image"], options["pod"], note)
    app = _the_app(document, options)
    implied = volume_options.add(document, app, options)
    _add_secrets(app, options)
    interactive: bool = options["interactive"]
    if foreground is False and interactive and app is not None:
        interactive = False
        own = app.get("annotations") or []
        if not isinstance(own, list) or not any(isinstance(one, dict) and one.get("name") == STDIN for one in own):
            app["annotations"] = [*own, {"name": STDIN, "value": "true"}]
    if app is not None:
        _annotate(app, _app_annotations(options))
        if options["pid"] == PID_OWN:
            _annotate(app, [(PID, PID_OWN)])
    elif options["log_path"] is not None:
        raise UsageError(
            "--log-path needs a pod of one app", hint="set kurma.io/log-path for an app in the pod file"
        )
    pairs = _annotate_pod(document, options)
    labels = {name: value for name, _, value in (text.partition("=") for text in options["label"])}
    if "" in labels:
        raise UsageError("--label: expected NAME or NAME=VALUE, and the name is empty")
    own = document.get("userLabels") or {}
    if labels and isinstance(own, dict):
        document["userLabels"] = {**own, **labels}
    with naming("standard input" if options["pod"] == "-" else options["pod"]):
        template = PodTemplate.of_file(document, note)
    overrides = _overrides(options)
    if options["name"] == "":
        raise UsageError("--name: the name is empty")
    if options["stager"] == "":
        raise UsageError("--stager: the name is empty", hint="see: kurma stager list")
    return PodRequest(
        template=template,
        uuid=template.uuid,
        name=options["name"],
        overrides={app["name"]: overrides} if app is not None and overrides else {},
        networks=_networks(options["net"], template),
        ports=_ports(options["publish"]),
        userns=_userns(options["userns"]) or _annotated_userns(pairs),
        isolators=isolator_options.of_the_pod(options),
        grants=(*options["grant"], *implied),
        stager=options["stager"],
        renderer=options["renderer"],
        pull=options["pull"],
        insecure=values.insecure(options["insecure_options"]),
        verify=options["verify"],
        interactive=app["name"] if app is not None and interactive else None,
        terminal=app["name"] if app is not None and options["tty"] else None,
        ephemeral=ephemeral,
        foreground=bool(foreground),
        hostname=None if options["hostname"] is None else values.hostname(options["hostname"], "--hostname"),
        dns=_dns(options),
        hosts=tuple(values.hosts_entry(text, "--hosts-entry") for text in options["hosts_entry"]),
        strict_isolators=options["strict_isolators"],
        strict_volumes=options["strict_volumes"],
        allow_volume_links=options["allow_volume_links"],
    )


def _annotate_pod(document: dict[str, Json], options: dict[str, Any]) -> list[tuple[str, str]]:
    """Adds the annotations of the pod that options set to its document; an option is over the pod file.

    :returns: names and values.
    """
    from kurma_core.models.pod import KEEP_ROOT, LOG_DIRECTORY

    pairs = [values.pair(text, "--annotation") for text in options["annotation"]]
    log_dir: str | None = options["log_dir"]
    if log_dir is not None:
        import os

        log_dir = os.path.abspath(log_dir)
    given = {
        RESTART: options["restart"],
        CGROUP_PARENT: options["cgroup_parent"],
        LOG_DIRECTORY: log_dir,
        KEEP_ROOT: "true" if options["keep_root"] else None,
    }
    for name, value in given.items():
        if value is None:
            continue
        pairs = [*(pair for pair in pairs if pair[0] != name), (name, value)]
        own = document.get("annotations")
        if isinstance(own, list):
            document["annotations"] = [
                one for one in own if not (isinstance(one, dict) and one.get("name") == name)
            ]
    if pairs:
        document.setdefault("annotations", []).extend({"name": name, "value": value} for name, value in pairs)
    return pairs


def app_request(options: dict[str, Any], note: Callable[[str], None]) -> PodRequest:
    """Makes the request for an app from the options: that of a pod with that app alone.

    :param options: values of :func:`app_options` by name.
    :raises UsageError: they are malformed, or contradict each other.
    """
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate, app_name
    from kurma_core.appc.types import ac_name
    from kurma_core.models.pod import PID, PID_HOST, STDIN, TERMINAL

    image: str = options["image"]
    app: dict[str, Json] = {"name": options["name"] or app_name(image), "image": image}
    if options["name"] is not None:
        try:
            ac_name(options["name"], "--name")
        except ManifestError as error:
            raise UsageError(error.message) from None
    if options["read_only"]:
        app["readOnlyRootFS"] = True
    _set_health_check(app, options)
    pairs = [values.pair(text, "--annotation") for text in options["annotation"]]
    pairs += _app_annotations(options)
    # An app that is added is never in the foreground: annotations keep its input and terminal.
    for given, name in ((options["interactive"], STDIN), (options["tty"], TERMINAL)):
        if given:
            pairs = [*(pair for pair in pairs if pair[0] != name), (name, "true")]
    if options["group_policy"] is not None:
        pairs = [*(pair for pair in pairs if pair[0] != GROUP_POLICY), (GROUP_POLICY, options["group_policy"])]
    if options["pid"] is not None:
        pairs = [*(pair for pair in pairs if pair[0] != PID), (PID, options["pid"])]
    if pairs:
        app["annotations"] = [{"name": name, "value": value} for name, value in pairs]
    document: dict[str, Json] = {"apps": [app]}
    implied = volume_options.add(document, app, options, own=True)
    _add_secrets(app, options)
    template = PodTemplate.parse(document, warn=note)
    overrides = _overrides(options)
    pid = ("os/linux/namespaces=pid",) if options["pid"] == PID_HOST else ()
    return PodRequest(
        template=template,
        overrides={app["name"]: overrides} if overrides else {},
        grants=(*options["grant"], *implied, *pid),
        pull=options["pull"],
        insecure=values.insecure(options["insecure_options"]),
        verify=options["verify"],
        strict_isolators=options["strict_isolators"],
        strict_volumes=options["strict_volumes"],
        allow_volume_links=options["allow_volume_links"],
    )


# --- the template ----------------------------------------------------------------------------------------------


def _document(image: str | None, file: str | None, note: Callable[[str], None]) -> dict[str, Json]:
    if (image is None) == (file is None):
        what = "neither an image nor a pod is given" if image is None else "both an image and --pod are given"
        raise UsageError(what, hint="give either IMAGE or --pod FILE")
    if image is not None:
        from kurma_core.appc.template import app_name

        return {"apps": [{"name": app_name(image), "image": image}]}
    assert file is not None
    from kurma_core.api import pod_file

    return pod_file.only_pod(pod_file.read_value(file, "--pod"), file, "--pod", note)


def _the_app(document: dict[str, Json], options: dict[str, Any]) -> dict[str, Json] | None:
    """The pod's only app. None: it has no app or several, and no option needs a single one.

    :raises UsageError: an option needs one.
    """
    apps: list[dict[str, Json]] = document["apps"]
    given = next((flag for name, flag in _OF_AN_APP.items() if options[name]), None)
    if given is None and options["pid"] == "own":
        given = "--pid own"
    if given is not None and len(apps) != 1:
        raise UsageError(
            f"{given} needs a pod of one app; this pod has {len(apps)}", hint="set it for an app in the pod file"
        )
    if len(apps) != 1:
        return None
    if options["read_only"]:
        apps[0]["readOnlyRootFS"] = True
    _set_health_check(apps[0], options)
    if options["group_policy"] is not None:
        own = apps[0].get("annotations") or []
        if isinstance(own, list):
            others = [one for one in own if not (isinstance(one, dict) and one.get("name") == GROUP_POLICY)]
            apps[0]["annotations"] = [*others, {"name": GROUP_POLICY, "value": options["group_policy"]}]
    return apps[0]


def _set_health_check(app: dict[str, Json], options: dict[str, Any]) -> None:
    own = app.get("healthCheck")
    check = health_options.health_check(options, own)
    if check is not own:
        app["healthCheck"] = check


def _app_annotations(options: dict[str, Any]) -> list[tuple[str, str]]:
    """The annotations of an app that options set."""
    from kurma_core.models.pod import LOG_PATH, STOP_SIGNAL

    found = []
    if options["stop_signal"] is not None:
        found.append((STOP_SIGNAL, str(values.signal_number(options["stop_signal"]))))
    if options["log_path"] is not None:
        found.append((LOG_PATH, options["log_path"]))
    return found


def _annotate(app: dict[str, Json], pairs: list[tuple[str, str]]) -> None:
    """Sets annotations of an app of the document."""
    own = app.get("annotations") or []
    if not pairs or not isinstance(own, list):
        return
    names = [name for name, _ in pairs]
    kept = [one for one in own if not (isinstance(one, dict) and one.get("name") in names)]
    app["annotations"] = [*kept, *({"name": name, "value": value} for name, value in pairs)]


def _add_secrets(app: dict[str, Json] | None, options: dict[str, Any]) -> None:
    if app is not None and options["secret"]:
        volume_options.add_secrets(app, options["secret"])


# --- the rest --------------------------------------------------------------------------------------------------


def _overrides(options: dict[str, Any]) -> AppOverrides:
    from kurma_core.api.pods import AppOverrides

    environment: list[tuple[str, str]] = []
    if options["env_file"] or options["env"]:
        from kurma_core.api import pod_file

        environment += [pair for path in options["env_file"] for pair in pod_file.environment_file(path)]
        environment += pod_file.environment(options["env"])
    user, group = values.user_and_group(options["user"], options["group"])
    workdir: str | None = options["workdir"]
    return AppOverrides(
        arguments=options["arguments"],
        exec=() if options["exec"] is None else (_program(options["exec"]),),
        user=user,
        group=group,
        supplementary_gids=tuple(values.group_id(text, "--group-add") for text in options["group_add"]),
        working_directory=None if workdir is None else values.inner_path(workdir, "--workdir"),
        environment=tuple(dict(environment).items()),
        isolators=isolator_options.isolators(options),
    )


def _program(path: str) -> str:
    if path == "":
        raise UsageError("--exec: the program's path is empty")
    return path


def _annotated_userns(pairs: list[tuple[str, str]]) -> str | None:
    """The user namespace by ``--annotation``, which counts as ``--userns`` does. The reader of the annotation
    reports a malformed one."""
    if not pairs:
        return None
    from kurma_core.models.isolator import USERNS_ANNOTATION, userns_word

    try:
        return userns_word(dict(pairs)[USERNS_ANNOTATION])
    except (KeyError, ValueError):
        return None


def _userns(text: str | None) -> str | None:
    from kurma_core.models.isolator import USERNS_WORDS, userns_word

    try:
        return None if text is None else userns_word(text)
    except ValueError:
        raise UsageError(f"--userns: malformed {text!r}", hint=f"write {USERNS_WORDS}") from None


def _networks(texts: tuple[str, ...], template: PodTemplate) -> tuple[NetworkRequest, ...] | None:
    """The networks of the options. None: the template decides."""
    if not texts:
        return None
    from kurma_core.api.network_options import parse_net

    return tuple(parse_net(text) for text in texts)


def _ports(texts: tuple[str, ...]) -> tuple[PortMapping, ...]:
    if not texts:
        return ()
    from kurma_core.api.network_options import parse_ports

    return tuple(port for text in texts for port in parse_ports(text))


def _dns(options: dict[str, Any]) -> DnsRequest | None:
    for address in options["dns"]:
        values.server(address, "--dns")
    for domain in options["dns_search"]:
        values.domain(domain, "--dns-search")
    for word in options["dns_opt"]:
        values.word(word, "--dns-opt")
    exact: bool = options["dns_exact"]
    if not (options["dns"] or options["dns_search"] or options["dns_opt"] or exact):
        return None
    from kurma_core.api.pods import DnsRequest

    return DnsRequest(options["dns"], options["dns_search"], options["dns_opt"], exact)
