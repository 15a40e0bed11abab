"""Turns probes of containers into health checks of apps."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kurma_core.models.health import WAYS, TcpCheck
from kurma_core.schema import SchemaError, describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_kube.fields import Fields

Json = Any
_SCHEMES = {"HTTP": "http", "HTTPS": "https"}
_KINDS = ("exec", "httpGet", "tcpSocket", "grpc")


def add_health_check(fields: Fields, app: dict[str, Json], ports: Mapping[str, int]) -> None:
    """Adds the health check of a container.

    It is the liveness probe, with the start period of the startup probe if both check the same. Without a
    liveness probe, it is the readiness probe, whose failures do nothing to the app. A probe without a
    counterpart gets a note.

    :param ports: ports of the container that have a name.
    """
    found = {key: _probe(fields, key, ports) for key in ("livenessProbe", "readinessProbe", "startupProbe")}
    live, ready, starting = found.values()
    check = live or ready
    if live is not None:
        live["onFailure"] = "kill"
        if ready is not None:
            fields.note("readinessProbe", "has no counterpart beside livenessProbe, and is ignored")
    if check is not None:
        app["healthCheck"] = check
    if starting is not None:
        if check is None or any(starting.get(way) != check.get(way) for way in WAYS):
            why = "there is no other probe" if check is None else "it is not the same check as the other probe"
            fields.note("startupProbe", f"is ignored: {why}")
            return
        check["startPeriod"] = starting["startPeriod"] + starting["retries"] * starting["interval"]
        check["startInterval"] = starting["interval"]


def _probe(fields: Fields, key: str, ports: Mapping[str, int]) -> dict[str, Json] | None:
    """A probe as a health check; None: there is none, or it has no counterpart."""
    probe = fields.child(key)
    if probe is None:
        return None
    kinds = [kind for kind in _KINDS if kind in probe]
    if len(kinds) > 1:
        raise fields.error(key, f"expected one of {', '.join(_KINDS)}, found {' and '.join(kinds)}")
    if kinds in ([], ["grpc"]):
        what = kinds[0] if kinds else "a probe without exec, httpGet and tcpSocket"
        fields.note(key, f"{what} has no counterpart, and is ignored")
        return None
    check: dict[str, Json] = {}
    if (command := probe.child("exec")) is not None:
        check["command"] = command.texts("command")
        command.done()
    for kind, way in (("httpGet", "http"), ("tcpSocket", "tcp")):
        if (request := probe.child(kind)) is not None:
            check[way] = found = {"port": _port(request, ports)}
            if (host := request.text("host")) and not _add_host(found, host):
                instead = "; write httpHeaders with Host" if way == "http" else ""
                request.note("host", f"{host} is not an IP address: the probe is ignored{instead}")
                return None
            if way == "http":
                _add_http(request, found)
            request.done()
    for name, mine, usual in (
        ("periodSeconds", "interval", 10),
        ("timeoutSeconds", "timeout", 1),
        ("initialDelaySeconds", "startPeriod", 0),
        ("failureThreshold", "retries", 3),
    ):
        # As in Kubernetes, 0 is the default.
        check[mine] = probe.number(name) or usual
    if (successes := probe.number("successThreshold")) is not None and successes > 1:
        probe.note("successThreshold", "one success is enough")
    probe.done()
    return check


def _port(fields: Fields, ports: Mapping[str, int]) -> int:
    value = fields.take("port")
    if isinstance(value, str):
        value = (
            int(value) if value.isascii() and value.isdecimal() and len(value) <= 5 else ports.get(value, value)
        )
    if isinstance(value, str):
        raise fields.error("port", f"the container has no port {value}")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise fields.error(
            "port", f"expected a number from 1 to 65535, or the name of a port, found {describe(value)}"
        )
    return value


def _add_host(check: dict[str, Json], host: str) -> bool:
    """:returns: False: it is a name, which a health check does not look up."""
    try:
        check["host"] = TcpCheck.from_json({"port": 1, "host": host}).host
    except SchemaError:
        return False
    return True


def _add_http(fields: Fields, check: dict[str, Json]) -> None:
    scheme = fields.text("scheme") or "HTTP"
    if scheme not in _SCHEMES:
        raise fields.error("scheme", f"{scheme!r} is not one of {', '.join(_SCHEMES)}")
    path = (fields.text("path") or "/").partition("#")[0]
    # As kubelet encodes it.
    path = quote(path, safe=string.punctuation)
    check |= {"scheme": _SCHEMES[scheme], "path": path if path.startswith("/") else f"/{path}"}
    headers = []
    for header in fields.children("httpHeaders"):
        headers.append({"name": header.required("name"), "value": header.text("value") or ""})
        header.done()
    if headers:
        check["headers"] = headers
