"""``--isolator``, and the options that are short for one: ``--memory``, ``--cpus``, ``--caps-retain``,
``--caps-remove``, ``--device``, ``--ulimit``; of the pod ``--pid``, ``--ipc`` and ``--uts``."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import Option
from kurma_core.errors import ManifestError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

#: In the order of the help.
OPTIONS = (
    Option("memory", "--memory -m", "Limit the app's memory, for example to 512Mi.", metavar="BYTES"),
    Option("cpus", "--cpus", "Limit the app's processor time, for example to 1.5 cores.", metavar="CORES"),
    Option("caps_retain", "--caps-retain", "Give the app these capabilities only.", metavar="CAP,…", many=True),
    Option(
        "caps_remove", "--caps-remove", "Take these capabilities from the default set.", metavar="CAP,…", many=True
    ),
    Option("device", "--device", "Give the app a device of the host.", metavar="HOST[:PATH][:ACCESS]", many=True),
    Option(
        "ulimit",
        "--ulimit",
        "Set a resource limit of the app's processes, for example nofile=1024:4096; -1: unlimited.",
        metavar="NAME=SOFT[:HARD]",
        many=True,
    ),
    Option("isolator", "--isolator", "Set an isolator of the app or of the pod.", metavar="NAME=JSON", many=True),
)
#: Of all apps of the pod.
GRANT = Option(
    "grant",
    "--grant",
    "Grant a power over the host that the image or the pod file requests.",
    metavar="POWER",
    many=True,
)
#: Of the pod: which namespaces it shares with the host; and ``--pid``, which may also be the app's.
OF_THE_POD: tuple[Option, ...] = (
    Option(
        "pid",
        "--pid",
        "Use the host's PID namespace, one of the pod's own (pod), or one of the app's own (own).",
        choices=("host", "private", "pod", "own"),
    ),
    *(
        Option(
            kind,
            f"--{kind}",
            f"Use the host's {kind.upper()} namespace, or one of the pod's own.",
            choices=("host", "private"),
        )
        for kind in ("ipc", "uts")
    ),
)
#: Of an app that is added to a pod.
APP_PID = Option(
    "pid",
    "--pid",
    "Use the PID namespace of the pod, one of its own, the host's, or that of another app.",
    metavar="pod|own|host|app:NAME",
)
_CAPABILITIES = "os/linux/capabilities-{}-set"


def isolators(options: dict[str, Any]) -> tuple[tuple[str, Json], ...]:
    """Name and value of each requested isolator, quantities in the user's own form.

    :raises UsageError: one is malformed, or requested twice.
    """
    found: dict[str, tuple[str, Json]] = {}

    def add(option: str, name: str, value: Json) -> None:
        if name in found:
            raise UsageError(f"{option}: {name} is already set by {found[name][0]}", hint="give it once")
        found[name] = (option, value)

    if options["memory"] is not None:
        add("--memory", "resource/memory", {"limit": _bytes(options["memory"])})
    if options["cpus"] is not None:
        add("--cpus", "resource/cpu", {"limit": _quantity(options["cpus"], "--cpus", "cores")})
    for way in ("retain", "remove"):
        if options[f"caps_{way}"]:
            option = f"--caps-{way}"
            add(option, _CAPABILITIES.format(way), {"set": _words(options[f"caps_{way}"], option)})
    if options["caps_retain"] and options["caps_remove"]:
        raise UsageError(
            "--caps-retain and --caps-remove contradict each other",
            hint="--caps-retain lists all capabilities of the app",
        )
    if options["device"]:
        add("--device", "kurma.io/devices", [_device(text) for text in options["device"]])
    if options["ulimit"]:
        add("--ulimit", "kurma.io/ulimits", _ulimits(options["ulimit"]))
    for text in options["isolator"]:
        name, value = _isolator(text)
        add(f"--isolator {name}", name, value)
    return tuple((name, value) for name, (_, value) in found.items())


def of_the_pod(options: dict[str, Any]) -> tuple[tuple[str, Json], ...]:
    """As :func:`isolators`, for the pod.

    :raises UsageError: both the host's UTS namespace and a host name of the pod's own are requested.
    """
    if options["uts"] == "host" and options["hostname"] is not None:
        raise UsageError(
            "--uts host and --hostname contradict each other", hint="with --uts host, the pod has the host's name"
        )
    words = {option.name: options[option.name] for option in OF_THE_POD if options[option.name] is not None}
    words = {kind: "private" if word == "pod" else word for kind, word in words.items() if word != "own"}
    return (("os/linux/namespaces", words),) if words else ()


def _device(text: str) -> dict[str, str]:
    """``/dev/fuse``, ``/dev/sda:/dev/disk``, ``/dev/fuse:rw``, or both."""
    source, *rest = text.split(":")
    path, access = source, "rwm"
    if rest and rest[0].startswith("/"):
        path = rest.pop(0)
    if rest:
        access = rest.pop(0)
    if rest or not source.startswith("/") or not access or not set(access) <= set("rwm"):
        hint = "for instance /dev/fuse, /dev/fuse:rw, /dev/sda:/dev/disk:r"
        raise UsageError(f"--device: expected HOST[:PATH][:ACCESS], found {text!r}", hint=hint)
    return {"path": path, "hostPath": source, "access": access}


def _ulimits(texts: tuple[str, ...]) -> dict[str, list[int]]:
    """``nofile=1024``, ``nofile=1024:4096``, ``memlock=-1``."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, value = values.pair(text, "--ulimit", "NAME=SOFT[:HARD]")
        soft, _, hard = value.partition(":") if ":" in value else (value, "", value)
        if not all(_is_limit(number) for number in (soft, hard)):
            hint = "for instance nofile=1024, nofile=1024:4096, memlock=-1"
            raise UsageError(f"--ulimit: expected NAME=SOFT[:HARD] in whole numbers, found {text!r}", hint=hint)
        if name in found:
            raise UsageError(f"--ulimit: {name} is given twice", hint="give it once, as NAME=SOFT:HARD")
        found[name] = [int(soft), int(hard)]
    return found


def _is_limit(text: str) -> bool:
    return text == "-1" or (text.isascii() and text.isdecimal() and len(text) < 20)


def _isolator(text: str) -> tuple[str, Json]:
    from kurma_core.appc.types import ac_identifier
    from kurma_core.json_text import read_document

    name, value = values.pair(text, "--isolator", "NAME=JSON")
    try:
        return ac_identifier(name, "$"), read_document(value, "its value")
    except ManifestError as error:
        where = f"--isolator {name}" + (f", {error.data['path']}" if error.data["path"] != "$" else "")
        raise UsageError(
            f"{where}: expected {error.data['expected']}, found {error.data['found']}",
            hint='write NAME=JSON: os/linux/oom-score-adj=500, \'resource/memory={"limit": "1G"}\'',
        ) from None


def _bytes(text: str) -> str:
    if text.endswith("m"):
        # In other programs this suffix means a million; here it would make a tiny limit.
        raise UsageError(
            f"--memory: {text!r}: the suffix m means thousandths",
            hint=f"write {text[:-1]}M, or {text[:-1]}Mi for MiB",
        )
    return _quantity(text, "--memory", "bytes")


def _quantity(text: str, option: str, unit: str) -> str:
    from kurma_core.appc.quantity import parse_quantity

    try:
        parse_quantity(text, option, unit=unit)
    except ManifestError as error:
        expected = error.data.get("expected", "a quantity")
        raise UsageError(f"{option}: expected {expected}, found {text!r}", hint=error.hint) from None
    return text


def _words(texts: tuple[str, ...], option: str) -> list[str]:
    words = [word for text in texts for word in text.split(",")]
    if not all(word.strip() == word and word for word in words):
        raise UsageError(
            f"{option}: expected capabilities, found {','.join(texts)!r}", hint=f"{option} CAP_CHOWN,CAP_KILL"
        )
    return words
