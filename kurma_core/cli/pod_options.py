"""The options of ``run`` and ``prepare``, and the pod request that they make."""

from __future__ import annotations

from kurma_core.cli import isolator_options, values, volume_options
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

#: The annotation that ``--restart`` sets: :data:`kurma_core.pods.run.pod_restarts.POLICY`.
RESTART = "kurma.io/pod/restart"

#: Arguments and options of ``run`` and ``prepare``, in the order of their help.
POD_OPTIONS: tuple[Argument | Option | Rest, ...] = (
    Argument("image", "IMAGE", "Address, path, name, or ID of the image; left out with --pod.", required=False),
    Rest("arguments", "ARG..."),
    Option("pod", "--pod", "A pod of any number of apps: JSON or YAML; - is standard input.", metavar="FILE"),
    Option("name", "--name", "The pod's name.", metavar="NAME"),
    Option("uuid_file", "--uuid-file", "Write the pod's UUID to FILE.", metavar="FILE"),
    Option("interactive", "--interactive -i", "Give the app this command's standard input."),
    Option("tty", "--tty -t", "Give the app a terminal."),
    Option("env", "--env -e", "Set a variable; NAME alone takes it from here.", metavar="NAME[=VALUE]", many=True),
    Option("env_file", "--env-file", "Set the variables that FILE lists.", metavar="FILE", many=True),
    Option("bind", "-v", "Mount a host path.", metavar="SOURCE:TARGET[:ro][,idmap]", many=True),
    Option(
        "volume",
        "--volume",
        "A volume; keys: name, kind (host or empty), source, readOnly, recursive, idmap, mode, uid, gid.",
        metavar="KEY=VALUE,…",
        many=True,
    ),
    Option("mount", "--mount", "Mount a volume.", metavar="volume=NAME,target=PATH", many=True),
    Option(
        "tmpfs",
        "--tmpfs",
        "Mount an empty directory that is kept in memory.",
        metavar="TARGET[:size=…][,mode=…]",
        many=True,
    ),
    Option(
        "net",
        "--net",
        "Join a network; none, host, or a name of `kurma network list`.",
        metavar="NAME[:IFNAME][,ip=…][,mac=…][,optional]",
        many=True,
    ),
    Option(
        "publish",
        "--publish -p",
        "Lead a port of the host to the pod; or a range of ports: 8000-8009:80-89.",
        metavar="[IP:]HOST:POD[/tcp|udp|sctp]",
        many=True,
    ),
    Option("dns", "--dns", "A name server.", metavar="ADDRESS", many=True),
    Option("dns_search", "--dns-search", "A domain in which names are looked up.", metavar="DOMAIN", many=True),
    Option("dns_opt", "--dns-opt", "An option of resolv.conf.", metavar="OPTION", many=True),
    Option("hostname", "--hostname", "The pod's host name.", metavar="NAME"),
    Option("hosts_entry", "--hosts-entry", "A line of /etc/hosts.", metavar="IP=NAME[,NAME]", many=True),
    Option("user", "--user", "Run as this user, and group, by name or number.", metavar="USER[:GROUP]"),
    Option("group", "--group", "Run as this group, by name or number.", metavar="GROUP"),
    Option("workdir", "--workdir", "Run in this directory of the app.", metavar="PATH"),
    Option("exec", "--exec", "Run this program in place of the image's command.", metavar="PATH"),
    Option("read_only", "--read-only", "Make the app's root read-only."),
    Option("annotation", "--annotation", "Annotate the pod.", metavar="NAME=VALUE", many=True),
    Option(
        "restart",
        "--restart",
        "Have kurmad start the pod again when it has ended.",
        choices=("never", "on-failure", "always"),
    ),
    *isolator_options.OPTIONS,
    isolator_options.GRANT,
    *isolator_options.OF_THE_POD,
    Option("strict_isolators", "--strict-isolators", "Fail if an isolator cannot be enforced."),
    Option("strict_volumes", "--strict-volumes", "Fail if a mount point of the image has no volume."),
    Option("allow_volume_links", "--allow-volume-links", "Let sources of volumes lead over symbolic links."),
    Option(
        "userns", "--userns", "The pod's user namespace: none, auto, or a range.", metavar="none|auto|UID:COUNT"
    ),
    Option("stager", "--stager", "The stager.", metavar="NAME"),
    Option("renderer", "--renderer", "The renderer.", metavar="NAME"),
    Option(
        "pull",
        "--pull",
        "Fetch images that are not in the store, always, or never.",
        choices=("new", "always", "never"),
        default="new",
    ),
    INSECURE_OPTIONS,
    PASSPHRASE_FILE,
    Option("verify", "--verify", "Check the images' content again before they are used."),
)

#: Those of them that ``app add`` takes, where they say something of one app.
_FOR_AN_APP = (
    *("env", "env_file", "bind", "volume", "mount", "tmpfs", "user", "group", "workdir", "exec", "read_only"),
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
        Argument("image", "IMAGE", "Address, path, name, or ID of the image."),
        shared["arguments"],
        Option("name", "--name", "The app's name; otherwise the last part of the image's.", metavar="NAME"),
        Option("interactive", "--interactive -i", "Keep the app's standard input open for those who attach."),
        shared["tty"],
        *(shared[name] for name in _FOR_AN_APP),
        Option("annotation", "--annotation", "Annotate the app.", metavar="NAME=VALUE", many=True),
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
    "user": "--user",
    "group": "--group",
    "workdir": "--workdir",
    "exec": "--exec",
    "read_only": "--read-only",
    **{option.name: option.flags[0] for option in isolator_options.OPTIONS},
    "arguments": "ARG",
}


def pod_request(
    options: dict[str, Any], note: Callable[[str], None], *, ephemeral: bool = False, detached: bool = False
) -> PodRequest:
    """Makes the request for a pod from the options.

    :param options: values of :data:`POD_OPTIONS` by name.
    :param detached: this command's standard input is not for the app: with -i the app's input stays open for
        clients that attach.
    :raises UsageError: they are malformed, or contradict each other.
    :raises ManifestError: the pod's file is invalid.
    """
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate
    from kurma_core.models.pod import STDIN
    from kurma_core.named_files import naming

    document = _document(options["image"], options["pod"], note)
    app = _the_app(document, options)
    volume_options.add(document, app, options)
    interactive: bool = options["interactive"]
    if detached and interactive and app is not None:
        interactive = False
        own = app.get("annotations") or []
        if not isinstance(own, list) or not any(isinstance(one, dict) and one.get("name") == STDIN for one in own):
            app["annotations"] = [*own, {"name": STDIN, "value": "true"}]
    pairs = [values.pair(text, "--annotation") for text in options["annotation"]]
    if options["restart"] is not None:
        pairs = [*(pair for pair in pairs if pair[0] != RESTART), (RESTART, options["restart"])]
        own = document.get("annotations")
        if isinstance(own, list):
            document["annotations"] = [
                one for one in own if not (isinstance(one, dict) and one.get("name") == RESTART)
            ]
    if pairs:
        document.setdefault("annotations", []).extend({"name": name, "value": value} for name, value in pairs)
    with naming("standard input" if options["pod"] == "-" else options["pod"]):
        template = PodTemplate.parse(document, warn=note)
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
        grants=options["grant"],
        stager=options["stager"],
        renderer=options["renderer"],
        pull=options["pull"],
        insecure=values.insecure(options["insecure_options"]),
        verify=options["verify"],
        interactive=app["name"] if app is not None and interactive else None,
        terminal=app["name"] if app is not None and options["tty"] else None,
        ephemeral=ephemeral,
        hostname=None if options["hostname"] is None else values.hostname(options["hostname"], "--hostname"),
        dns=_dns(options),
        hosts=tuple(values.hosts_entry(text, "--hosts-entry") for text in options["hosts_entry"]),
        strict_isolators=options["strict_isolators"],
        strict_volumes=options["strict_volumes"],
        allow_volume_links=options["allow_volume_links"],
    )


def app_request(options: dict[str, Any], note: Callable[[str], None]) -> PodRequest:
    """Makes the request for an app from the options: that of a pod with that app alone.

    :param options: values of :func:`app_options` by name.
    :raises UsageError: they are malformed, or contradict each other.
    """
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate, app_name
    from kurma_core.appc.types import ac_name
    from kurma_core.models.pod import STDIN, TERMINAL

    image: str = options["image"]
    app: dict[str, Json] = {"name": options["name"] or app_name(image), "image": image}
    if options["name"] is not None:
        try:
            ac_name(options["name"], "--name")
        except ManifestError as error:
            raise UsageError(error.message) from None
    if options["read_only"]:
        app["readOnlyRootFS"] = True
    pairs = [values.pair(text, "--annotation") for text in options["annotation"]]
    # An app that is added is never in the foreground: annotations keep its input and terminal.
    for given, name in ((options["interactive"], STDIN), (options["tty"], TERMINAL)):
        if given:
            pairs = [*(pair for pair in pairs if pair[0] != name), (name, "true")]
    if pairs:
        app["annotations"] = [{"name": name, "value": value} for name, value in pairs]
    document: dict[str, Json] = {"apps": [app]}
    volume_options.add(document, app, options, own=True)
    template = PodTemplate.parse(document, warn=note)
    overrides = _overrides(options)
    return PodRequest(
        template=template,
        overrides={app["name"]: overrides} if overrides else {},
        grants=options["grant"],
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
        raise UsageError(what, hint="name an IMAGE, or a file with --pod FILE")
    if image is not None:
        from kurma_core.appc.template import app_name

        return {"apps": [{"name": app_name(image), "image": image}]}
    assert file is not None
    document = values.pod_file(file, "--pod")
    if values.is_early_pod_file(document):
        from kurma_core.appc.early_pod import convert_pod

        return convert_pod(document, warn=note).to_json()
    apps = document.get("apps") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(apps, list):
        raise UsageError(f"{file} is no pod: it has no list of apps")
    if not all(isinstance(app, dict) and isinstance(app.get("name"), str) for app in apps):
        raise UsageError(f"{file} is no pod: an app has no name")
    return document


def _the_app(document: dict[str, Json], options: dict[str, Any]) -> dict[str, Json] | None:
    """The pod's only app. None: it has no app or several, and no option needs a single one.

    :raises UsageError: an option needs one.
    """
    apps: list[dict[str, Json]] = document["apps"]
    given = next((flag for name, flag in _OF_AN_APP.items() if options[name]), None)
    if given is not None and len(apps) != 1:
        raise UsageError(
            f"{given} is for a pod of one app; this one has {len(apps)}", hint="say it in the pod's file"
        )
    if len(apps) != 1:
        return None
    if options["read_only"]:
        apps[0]["readOnlyRootFS"] = True
    return apps[0]


# --- the rest --------------------------------------------------------------------------------------------------


def _overrides(options: dict[str, Any]) -> AppOverrides:
    from kurma_core.api.pods import AppOverrides

    environment = [pair for path in options["env_file"] for pair in values.environment_file(path)]
    environment += values.environment(options["env"])
    user, group = values.user_and_group(options["user"], options["group"])
    workdir: str | None = options["workdir"]
    return AppOverrides(
        arguments=options["arguments"],
        exec=() if options["exec"] is None else (_program(options["exec"]),),
        user=user,
        group=group,
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
    if not (options["dns"] or options["dns_search"] or options["dns_opt"]):
        return None
    from kurma_core.api.pods import DnsRequest

    return DnsRequest(options["dns"], options["dns_search"], options["dns_opt"])
