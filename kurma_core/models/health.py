"""Health checks of apps: a command that Kurma runs in an app again and again, or a request that it sends to it;
their settings, results and state."""

from __future__ import annotations

from kurma_core.schema import (
    Count,
    ExitCode,
    JsonValue,
    Number,
    Pairs,
    Port,
    SchemaError,
    Text,
    Timestamp,
    Whole,
    Words,
    describe,
)
from kurma_core.value import field, fields, frozen

#: The largest number of failures in a row that make an app unhealthy.
MOST_RETRIES = 1000
#: The shortest interval and timeout, which keeps an image from making kurmad busy; and the longest.
LEAST_SECONDS, MOST_SECONDS = 0.1, 604_800

#: The longest path and header of a request, in characters.
_LONGEST_TEXT = 4096
#: Headers that Kurma writes itself.
_OWN_HEADERS = ("connection", "content-length", "transfer-encoding")
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


def _address(value: object, path: str) -> str:
    """An IP address. A name would have to be looked up by the host's resolver, outside of the pod."""
    import _socket

    text = "127.0.0.1" if value == "localhost" else value
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            _socket.inet_pton(family, text)  # type: ignore[arg-type]
        except (OSError, TypeError, ValueError):
            continue
        return str(text)
    raise SchemaError(path, "an IP address, or localhost", describe(value))


def _http_path(value: object, path: str) -> str:
    if not _printable(value, path).startswith("/") or " " in str(value) or "#" in str(value):
        raise SchemaError(path, "a path that begins with / and has no spaces and no #", describe(value))
    return str(value)


def _header_name(value: object, path: str) -> str:
    name = _printable(value, path)
    if not name or not _TOKEN.issuperset(name.lower()):
        raise SchemaError(path, "the name of a header", describe(value))
    if name.lower() in _OWN_HEADERS:
        raise SchemaError(path, f"a header other than {', '.join(_OWN_HEADERS)}", describe(value))
    return name


def _printable(value: object, path: str) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise SchemaError(path, "printable ASCII characters", describe(value))
    if len(value) > _LONGEST_TEXT or value != value.strip():
        raise SchemaError(path, f"up to {_LONGEST_TEXT} characters, without spaces around them", describe(value))
    return value


#: An HTTP request's headers, in order; a name may come several times.
HEADERS = Pairs(("name", "value"), Text(_header_name, "HeaderName"), Text(_printable, "HeaderValue"))

TYPE_CHECKING = False
if TYPE_CHECKING:
    Address = str
    HttpPath = str
    Scheme = str
    Duration = float
    HealthWord = str
    OnFailure = str
    Period = float
    Retries = int
else:
    Address = Text(_address, "IpAddress")
    HttpPath = Text(_http_path, "HttpPath")
    Scheme = Words("http", "https")
    #: Seconds.
    Duration = Number(LEAST_SECONDS, most=MOST_SECONDS)
    #: Seconds; 0: none.
    Period = Number(0, most=MOST_SECONDS)
    Retries = Whole(1, MOST_RETRIES)
    HealthWord = Words("starting", "healthy", "unhealthy")
    OnFailure = Words("none", "kill", "restart", "stop")

#: An app's annotation with the settings of its health check, as JSON, which count before those of the image; or
#: :data:`DISABLED`.
HEALTH_CHECK = "kurma.io/health-check"
#: The value of that annotation for an app that has no health check, whatever its image says.
DISABLED = "none"
STARTING, HEALTHY, UNHEALTHY = "starting", "healthy", "unhealthy"
#: Words of ``on_failure``.
NOTHING, KILL, RESTART, STOP = "none", "kill", "restart", "stop"
#: Fields of :class:`HealthCheck` that say how the app is checked.
WAYS = ("command", "http", "tcp")
#: Results that are kept for each app, and bytes of each output.
KEPT_RESULTS, LONGEST_OUTPUT = 5, 4096


@frozen(kw_only=True)
class HttpCheck(JsonValue):
    """A request over HTTP, which Kurma sends from the pod's network namespace. A status from 200 to 399: the app
    is healthy. Redirects are not followed, and certificates are not verified.

    :param port: of the app's server. :param path: with the query. :param scheme: of the URL.
    :param host: the server's IP address.
    :param headers: in place of, or besides, those that Kurma sends: ``Host``
        (address and port), ``User-Agent`` and ``Accept``, which an empty value removes.
    """

    JSON_NAME = "HttpCheck"
    PARTIAL = True

    port: Port
    path: HttpPath = "/"
    scheme: Scheme = "http"
    host: Address = "127.0.0.1"
    headers: tuple[tuple[str, str], ...] = field(default=(), shape=HEADERS)

    @property
    def address(self) -> str:
        """``127.0.0.1:80``"""
        return address_text(self.host, self.port)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.path}"


@frozen(kw_only=True)
class TcpCheck(JsonValue):
    """A TCP connection, which Kurma makes from the pod's network namespace, and closes. If it can be made, the app
    is healthy.

    :param port: of the app's server. :param host: the server's IP address.
    """

    JSON_NAME = "TcpCheck"
    PARTIAL = True

    port: Port
    host: Address = "127.0.0.1"

    @property
    def address(self) -> str:
        """``127.0.0.1:5432``"""
        return address_text(self.host, self.port)


def address_text(host: str, port: int) -> str:
    """An IP address and a port, as URLs have them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@frozen(kw_only=True)
class HealthCheck(JsonValue):
    """The settings of an app's health check. Null: the image's setting; without that: the default.

    Only one of ``command``, ``http`` and ``tcp`` is not null. It replaces that of the image.

    :param command: the command and its arguments; no shell interprets them. Exit code 0: the app is healthy.
    :param http: a request over HTTP. :param tcp: a TCP connection.
    :param interval: seconds between the end of a check and the next check; default: 30.
    :param timeout: seconds after which a check counts as failed, and is ended: a command is killed with all that
        it has started; default: 30.
    :param start_period: seconds after the app's start in which failures do not count; default: 0. It ends with the
        first success.
    :param start_interval: the interval during the start period; default: 5.
    :param retries: failures in a row after which the app is unhealthy; default: 3.
    :param on_failure: what happens to an unhealthy app: ``none``; ``kill``: it is killed, and the restart policies
        of app and pod decide; ``restart``: its pod is started again; ``stop``: its pod is stopped. Default:
        ``none``.
    """

    JSON_NAME = "HealthCheck"
    PARTIAL = True

    command: tuple[str, ...] | None = None
    http: HttpCheck | None = None
    tcp: TcpCheck | None = None
    interval: Duration | None = None
    timeout: Duration | None = None
    start_period: Period | None = None
    start_interval: Duration | None = None
    retries: Retries | None = None
    on_failure: OnFailure | None = None

    @property
    def ways(self) -> tuple[str, ...]:
        """Those of :data:`WAYS` that are given: one at most, except in a wrong document."""
        return tuple(name for name in WAYS if getattr(self, name) is not None)

    def over(self, base: HealthCheck) -> HealthCheck:
        """These settings, and those of ``base`` where these are null. A way to check replaces that of ``base``."""
        own = {each.name: getattr(self, each.name) for each in fields(HealthCheck)}
        kept = WAYS if self.ways else ()
        return HealthCheck(
            **{name: getattr(base, name) if one is None and name not in kept else one for name, one in own.items()}
        )

    def completed(self) -> HealthCheck:
        """These settings, and the defaults where these are null."""
        return self.over(_DEFAULTS)

    def to_said(self) -> dict[str, object]:
        """The JSON without nulls."""
        return {key: value for key, value in self.to_json().items() if value is not None}


_DEFAULTS = HealthCheck(
    interval=30.0, timeout=30.0, start_period=0.0, start_interval=5.0, retries=3, on_failure=NOTHING
)


@frozen(kw_only=True)
class HealthResult(JsonValue):
    """The result of one check.

    :param started_at: when it began. :param finished_at: when it ended.
    :param exit_code: of the command; null: it did not end in time, or could not be run: ``output`` says which. Of
        a request or a connection: 0 if it succeeded, else 1.
    :param output: the first 4096 bytes of the command's standard output and error; or one line on the request or
        the connection, and the beginning of the answer; empty for read-only callers.
    """

    JSON_NAME = "HealthResult"

    started_at: Timestamp
    finished_at: Timestamp
    exit_code: ExitCode | None
    output: str

    @property
    def passed(self) -> bool:
        return self.exit_code == 0


@frozen(kw_only=True)
class AppHealth(JsonValue):
    """The health of an app, by its checks since its last start.

    :param status: ``starting``: it has passed no check yet, and has not failed too often; ``healthy``: it has
        passed the last check, or has not failed often enough since; ``unhealthy``: it has failed as many checks in
        a row as ``retries`` says.
    :param failing_streak: failures in a row.
    :param results: of the last five checks, the oldest first.
    """

    JSON_NAME = "AppHealth"

    status: HealthWord = STARTING
    failing_streak: Count = 0
    results: tuple[HealthResult, ...] = field(default=())

    def after(self, result: HealthResult, check: HealthCheck, *, starting: bool) -> AppHealth:
        """The health after one more check.

        :param result: of that check. :param check: completed.
        :param starting: the check began in the start period.
        """
        results = (*self.results, result)[-KEPT_RESULTS:]
        if result.passed:
            return AppHealth(status=HEALTHY, failing_streak=0, results=results)
        if starting and self.status == STARTING:
            return AppHealth(status=STARTING, failing_streak=0, results=results)
        streak = self.failing_streak + 1
        status = UNHEALTHY if streak >= (check.retries or 1) else self.status
        return AppHealth(status=status, failing_streak=streak, results=results)
