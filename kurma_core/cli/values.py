"""Reads values of options and files that they name: durations, times, signals, addresses."""

from __future__ import annotations

from kurma_core.errors import ManifestError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_core.models.image import FetchCredentials

#: Bytes of a file with credentials, at most.
_LARGEST_CREDENTIALS = 65536
#: Checks that ``--insecure-options`` may relax.
INSECURE = ("image", "tls", "http", "pubkey")


def seconds(text: str, option: str) -> float:
    """``90``, ``90s``, ``1h30m``.

    :raises UsageError: it is not a duration.
    """
    from kurma_core.config.schema import duration

    try:
        return duration(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError:
        raise UsageError(f"{option}: {text!r} is not a duration", hint="write 90, 90s, 5m or 1h30m") from None


def pod_and_app(text: str, app: str | None) -> tuple[str, str | None]:
    """Pod and app of ``POD``, ``POD/APP``, and of the option ``--app``.

    :raises UsageError: a part is empty, or both name an app.
    """
    pod, slash, named = text.partition("/")
    if not slash:
        return pod, app
    if not pod or not named or "/" in named:
        raise UsageError(f"malformed {text!r}", hint="write POD, or POD/APP for one app of the pod")
    if app not in (None, named):
        raise UsageError(f"--app: {app} is not the app of {text}")
    return pod, named


def credentials(path: str) -> FetchCredentials:
    """The credentials ``USER:PASSWORD`` in the first line of a file; ``-`` is standard input.

    :raises UsageError: it has none. :raises HostError: it cannot be read.
    """
    from kurma_core.models.image import FetchCredentials
    from kurma_core.named_files import content

    file = "/dev/stdin" if path == "-" else path
    line = content(file, endless=True, largest=_LARGEST_CREDENTIALS).partition(b"\n")[0].rstrip(b"\r")
    user, colon, password = line.decode(errors="surrogateescape").partition(":")
    if not user or not colon:
        raise UsageError(f"--creds-file: {path} has no credentials", hint="its first line is USER:PASSWORD")
    return FetchCredentials(user, password)


def find_pod_and_app(client: Api, text: str, app: str | None) -> tuple[str, str | None]:
    """As :func:`pod_and_app`; the pod may also be named by its display name, which may hold a ``/``.

    :raises UsageError: as :func:`pod_and_app`.
    """
    if "/" in text:
        displayed = {pod.display_name for pod in client.summaries()}
        head, _, tail = text.rpartition("/")
        if text in displayed:
            return text, app
        if head in displayed and tail and app in (None, tail):
            return head, tail
    return pod_and_app(text, app)


def since(text: str) -> int:
    """The time that ``--since`` names, in nanoseconds since the epoch; see
    :func:`kurma_core.formats.timestamps.moment`.

    :raises UsageError: it is not a time.
    """
    from kurma_core.formats.timestamps import moment

    try:
        return moment(text)
    except ValueError:
        hint = "write 2024-05-31T12:00:00Z, 10m for the last ten minutes, or seconds since the epoch"
        raise UsageError(f"--since: {text!r} is not a time", hint=hint) from None


def signal_number(text: str) -> int:
    """``9``, ``KILL``, ``SIGKILL``, ``sigkill``.

    :raises UsageError: it is not a signal.
    """
    from kurma_core.linux import process

    number = process.signal_number(text)
    if number is None:
        raise UsageError(f"no signal {text!r}", hint="by number or by name: 15, TERM, SIGTERM")
    return number


def insecure(texts: tuple[str, ...]) -> frozenset[str]:
    """``--insecure-options a,b``, given any number of times.

    :raises UsageError: an unknown one.
    """
    words = frozenset(word for text in texts for word in text.split(",") if word)
    unknown = sorted(words.difference(INSECURE))
    if unknown:
        raise UsageError(f"--insecure-options: no option {unknown[0]!r}", hint=f"there are: {', '.join(INSECURE)}")
    return words


def pair(text: str, option: str, shape: str = "NAME=VALUE") -> tuple[str, str]:
    """``NAME=VALUE``.

    :param shape: how to write it, for the error.
    :raises UsageError: it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{option}: expected {shape}, found {text!r}")
    return name, value


def json_file(path: str, option: str = "", *, endless: bool = False) -> object:
    """The JSON value in a file.

    :param option: the option that names the file.
    :param endless: the file may be a pipe.
    :raises KurmaError: it cannot be read, or is not JSON.
    """
    from kurma_core.json_text import read_document
    from kurma_core.named_files import content, naming

    data = content(path, option=option, endless=endless)
    with naming(path):
        return read_document(data, path)


def user_and_group(user: str | None, group: str | None) -> tuple[str | None, str | None]:
    """``--user USER[:GROUP]`` and ``--group GROUP``. A path, which stands for its owner, may contain colons.

    :raises UsageError: both name a group, or a part is empty.
    """
    if user is None or ":" not in user or user.startswith("/"):
        pass
    elif group is not None:
        raise UsageError(f"--user: {user!r} names a group, and --group is given as well", hint="give it once")
    else:
        user, _, group = user.partition(":")
    for option, part in (("--user", user), ("--group", group)):
        if part is not None and (not part or (":" in part and not part.startswith("/"))):
            raise UsageError(f"{option}: malformed {part!r}", hint="write USER or USER:GROUP, by name or number")
    return user, group


def is_id(text: str) -> bool:
    """Whether it is the number of a user or group."""
    from kurma_core.models.isolator import MAX_ID

    return text.isascii() and text.isdecimal() and len(text) < 11 and int(text) <= MAX_ID


def group_id(text: str, option: str) -> int:
    """The number of a group. :raises UsageError: it is none."""
    if not is_id(text):
        raise UsageError(f"{option}: {text!r} is not the number of a group")
    return int(text)


def inner_path(text: str, option: str) -> str:
    """A path inside an app.

    :raises UsageError: it is relative, or leads upwards.
    """
    if not text.startswith("/") or ".." in text.split("/"):
        raise UsageError(f"{option}: {text!r} is not an absolute path without ..")
    return text


def mode(text: str, option: str) -> str:
    """Permission bits in octal digits.

    :raises UsageError: they are not.
    """
    if not text or len(text) > 5 or not set(text) <= set("01234567") or int(text, 8) > 0o7777:
        raise UsageError(
            f"{option}: mode must be an octal number up to 7777, not {text!r}", hint="for instance mode=0755"
        )
    return text


def hostname(text: str, option: str) -> str:
    """A host name: labels with dots between them.

    :raises UsageError: it is not.
    """
    from kurma_core.appc.types import host_name

    try:
        return host_name(text, option)
    except ManifestError:
        hint = "letters, digits and - inside, in parts of at most 63 with dots between, 64 in all"
        raise UsageError(f"{option}: {text!r} cannot be a host's name", hint=hint) from None


def hosts_entry(text: str, option: str) -> tuple[str, tuple[str, ...]]:
    """``IP=NAME[,NAME]``: a line of ``/etc/hosts``.

    :raises UsageError: it is not of that form.
    """
    shape = "IP=NAME[,NAME]"
    found, names = pair(text, option, shape)
    address(found, option)
    split = tuple(names.split(","))
    if not all(name and not any(letter.isspace() or letter == "#" for letter in name) for name in split):
        raise UsageError(f"{option}: malformed {text!r}", hint=f"write {shape}")
    return found, split


def word(text: str, option: str) -> None:
    """:raises UsageError: it would not be one word in a resolv.conf."""
    from kurma_core.appc.types import RESOLV_WORD_LIMIT, resolv_word

    try:
        resolv_word(text, option)
    except ManifestError:
        hint = f"one word of at most {RESOLV_WORD_LIMIT} letters each"
        raise UsageError(f"{option}: malformed {text!r}", hint=hint) from None


def domain(text: str, option: str) -> None:
    """A search domain; ``.`` alone turns the search off.

    :raises UsageError: it is not a valid domain name.
    """
    from kurma_core.appc.types import search_domain

    word(text, option)
    try:
        search_domain(text, option)
    except ManifestError:
        hint = "parts of 1 to 63 letters with dots between"
        raise UsageError(f"{option}: malformed {text!r}", hint=hint) from None


def server(text: str, option: str) -> None:
    """The address of a name server. :raises UsageError: it is not an address of a single host."""
    from kurma_core.api.network_options import no_address_of_a_host

    address(text, option)
    if why := no_address_of_a_host(text):
        raise UsageError(f"{option}: {why}")


def address(text: str, option: str) -> None:
    """:raises UsageError: it is not an IP address."""
    from kurma_core.appc.types import address_family

    if not address_family(text):
        raise UsageError(f"{option}: {text!r} is not an address")
