"""The options for an app's health check, as container engines name them."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import Option
from kurma_core.errors import ManifestError, UsageError
from kurma_core.models.health import LEAST_SECONDS, MOST_RETRIES, MOST_SECONDS, HttpCheck, TcpCheck
from kurma_core.schema import SchemaError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.schema import JsonValue

    Json = Any

OPTIONS = (
    Option(
        "health_cmd",
        "--health-cmd",
        "Check the app's health by this shell command, or by a JSON list of words; none: do not check it.",
        metavar="COMMAND",
    ),
    Option(
        "health_http",
        "--health-http",
        "Check the app's health by a request to this address, such as http://localhost:8080/healthz.",
        metavar="URL",
    ),
    Option(
        "health_tcp",
        "--health-tcp",
        "Check the app's health by a connection to this port, or to ADDRESS:PORT.",
        metavar="PORT",
    ),
    Option("health_interval", "--health-interval", "Set the time between two checks.", metavar="TIME"),
    Option("health_timeout", "--health-timeout", "Set the time that a check may take.", metavar="TIME"),
    Option(
        "health_start_period",
        "--health-start-period",
        "Set the time after the app's start in which failed checks do not count.",
        metavar="TIME",
    ),
    Option(
        "health_start_interval",
        "--health-start-interval",
        "Set the time between two checks in the start period.",
        metavar="TIME",
    ),
    Option(
        "health_retries",
        "--health-retries",
        "Set the number of failures in a row that make the app unhealthy.",
        metavar="COUNT",
    ),
    Option(
        "health_on_failure",
        "--health-on-failure",
        "Set what happens to an unhealthy app: nothing, kill it, restart or stop its pod.",
        choices=("none", "kill", "restart", "stop"),
    ),
    Option("no_healthcheck", "--no-healthcheck", "Do not check the app's health, whatever its image says."),
)
#: Options that say how the app is checked, and their keys in a pod file.
_WAYS = {"health_cmd": "command", "health_http": "http", "health_tcp": "tcp"}
_PORTS = {"http": 80, "https": 443}
#: Keys of further options in a pod file.
_DURATIONS = {
    "health_interval": "interval",
    "health_timeout": "timeout",
    "health_start_period": "startPeriod",
    "health_start_interval": "startInterval",
}


def health_check(options: dict[str, Any], own: Json) -> Json:
    """The ``healthCheck`` of the app in the pod file, with what the options say.

    :param own: what the pod file says.
    :raises UsageError: an option is malformed, or contradicts another.
    """
    command = options["health_cmd"]
    given = [
        flag for name, flag in FLAGS.items() if options[name] not in (None, False) and name != "no_healthcheck"
    ]
    if options["no_healthcheck"] or command == "none":
        if command == "none":
            given.remove(FLAGS["health_cmd"])
        if given:
            raise UsageError(f"--no-healthcheck and {given[0]} contradict each other", hint="leave one out")
        return False
    if not given:
        return own
    found: dict[str, Json] = dict(own) if isinstance(own, dict) else {}
    ways = [name for name in _WAYS if options[name] is not None]
    if len(ways) > 1:
        raise UsageError(f"{FLAGS[ways[0]]} and {FLAGS[ways[1]]} contradict each other", hint="leave one out")
    if ways:
        for key in _WAYS.values():
            found.pop(key, None)
    if command is not None:
        found["command"] = _command(command)
    if options["health_http"] is not None:
        found["http"] = _http(options["health_http"])
    if options["health_tcp"] is not None:
        found["tcp"] = _tcp(options["health_tcp"])
    for name, key in _DURATIONS.items():
        if options[name] is not None:
            found[key] = _seconds(
                options[name], FLAGS[name], 0 if name == "health_start_period" else LEAST_SECONDS
            )
    if options["health_retries"] is not None:
        found["retries"] = _count(options["health_retries"])
    if options["health_on_failure"] is not None:
        found["onFailure"] = options["health_on_failure"]
    return found


def _command(text: str) -> str | list[str]:
    """A text for a shell; or the words of a JSON list, which may begin with CMD or CMD-SHELL. ``[ -e FILE ]`` is a
    shell's."""
    if not text.startswith("["):
        if not text.strip():
            raise _no_command()
        return text
    from kurma_core.json_text import read_document

    try:
        words = read_document(text, "--health-cmd")
    except ManifestError:
        if text.startswith(("[ ", "[[ ")):
            return text
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UsageError("--health-cmd: expected a JSON list of words", hint='for instance ["pg_isready", "-q"]')
    kind = words[0] if words[0] in ("CMD", "CMD-SHELL") else None
    said = words[1:] if kind else words
    if not said or not said[0].strip():
        raise _no_command()
    if kind == "CMD-SHELL":
        if len(said) > 1:
            raise UsageError("--health-cmd: CMD-SHELL takes one text", hint='for instance ["CMD-SHELL", "a || b"]')
        return str(said[0])
    return said


def _http(url: str) -> Json:
    """``http`` of the health check for a URL."""
    from urllib.parse import urlsplit

    try:
        # Python removes line feeds and tabs from an address.
        parts = urlsplit(url if url.isprintable() else "")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _PORTS or not parts.netloc or "@" in parts.netloc or "#" in url:
        raise UsageError(
            f"--health-http: {url!r} is not such an address", hint="for instance http://localhost:8080/healthz"
        )
    found: dict[str, Json] = {"scheme": parts.scheme, "port": _PORTS[parts.scheme] if port is None else port}
    if parts.hostname:
        found["host"] = parts.hostname
    path = parts.path or "/"
    found["path"] = f"{path}?{parts.query}" if parts.query else path
    return _fitting(HttpCheck, found, "--health-http", url)


def _tcp(text: str) -> Json:
    """``tcp`` of the health check for a port, or an address and a port."""
    host, colon, port = text.rpartition(":")
    if not (port.isdecimal() and port.isascii() and len(port) <= 5) or (colon and not host):
        raise UsageError(f"--health-tcp: {text!r} is not a port", hint="for instance 5432, or [::1]:5432")
    found: dict[str, Json] = {"port": int(port)}
    if host:
        found["host"] = host.removeprefix("[").removesuffix("]")
    return _fitting(TcpCheck, found, "--health-tcp", text)


def _fitting(kind: type[JsonValue], value: Json, flag: str, text: str) -> Json:
    try:
        kind.from_json(value)
    except SchemaError as error:
        raise UsageError(f"{flag}: {text!r}: expected {error.expected}, found {error.found}") from None
    return value


def _no_command() -> UsageError:
    return UsageError(
        "--health-cmd: the command is empty", hint="--no-healthcheck runs the app without a health check"
    )


def _seconds(text: str, flag: str, least: float) -> float:
    found = values.seconds(text, flag)
    if not least <= found <= MOST_SECONDS:
        raise UsageError(f"{flag}: {text!r} is not a time from {least:g} s to {MOST_SECONDS // 3600} h")
    return found


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= MOST_RETRIES):
        raise UsageError(f"--health-retries: {text!r} is not a number from 1 to {MOST_RETRIES}")
    return int(text)


#: The option by the name of its value.
FLAGS = {option.name: option.flags[0] for option in OPTIONS}
