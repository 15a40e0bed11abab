"""The specification's scalar types: names, identifiers, image IDs, versions, times, URLs, UUIDs, paths.

Every validator takes ``(value, path)``, a JSON value and its path (``$.app.ports[0].name``), and returns the value
in canonical form or raises :class:`~kurma_core.errors.ManifestError`. It is written without ``re``, which takes
longer to import than this module.
"""

from __future__ import annotations

from kurma_core.errors import ManifestError
from kurma_core.schema import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdef")
_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_NAME = _LOWER | {"-"}
_IDENTIFIER = _LOWER | frozenset("-._~/")
_ENV_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_ENV = _ENV_FIRST | _DIGITS | frozenset(".-")
_SEMVER = _DIGITS | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-")
_VOLUME_NAME = _SEMVER | {"_", "."}
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
#: Length of the digest, in hex digits, by the prefix of an image ID; sha256 is the early draft's.
_DIGEST_DIGITS = {"sha512": 128, "sha256": 64}
#: The kernel's limit on a host's name.
_HOSTNAME_LIMIT = 64
#: Longest part of a name between dots (RFC 1123).
_LABEL_LIMIT = 63
#: Longest word of a resolv.conf: a domain (RFC 1035).
RESOLV_WORD_LIMIT = 253
_HOST_LETTERS = _ENV_FIRST - {"_"} | _DIGITS | {"-"}
#: Fewest digits of a shortened ID.
SHORTEST_ID = 6
LONGEST_VOLUME_NAME = 64


def text(value: object, path: str) -> str:
    """A string with any content."""
    if not isinstance(value, str):
        raise ManifestError(path, "a string", describe(value))
    return value


def word(value: object, path: str) -> str:
    """A string without NUL, which system calls accept."""
    result = text(value, path)
    if "\0" in result:
        raise ManifestError(path, "a string without NUL", describe(value))
    return result


def nonempty(value: object, path: str) -> str:
    """A string of at least one character, without NUL."""
    result = word(value, path)
    if not result:
        raise ManifestError(path, "a string that is not empty", describe(value))
    return result


def ac_identifier(value: object, path: str) -> str:
    """ACIdentifier: names of images, labels, annotations and isolators.

    An identifier is not a safe file name: it may hold ``/`` and ``..`` between its letters.
    """
    result = text(value, path)
    if not (result and result[0] in _LOWER and result[-1] in _LOWER and _IDENTIFIER.issuperset(result)):
        raise ManifestError(
            path,
            "an identifier (lower-case letters and digits, with any of -._~/ between them)",
            describe(value),
        )
    return result


def ac_name(value: object, path: str) -> str:
    """ACName: names of apps, volumes, mount points and ports."""
    result = text(value, path)
    if not (result and result[0] in _LOWER and result[-1] in _LOWER and _NAME.issuperset(result)):
        raise ManifestError(path, "a name (lower-case letters and digits, with - between them)", describe(value))
    return result


def volume_name(value: object, path: str) -> str:
    """The name of a named volume. It may have capitals, dots and ``_``, as with other container engines."""
    result = text(value, path)
    if not (0 < len(result) <= LONGEST_VOLUME_NAME and result[0] not in "-_." and _VOLUME_NAME.issuperset(result)):
        raise ManifestError(
            path,
            f"1 to {LONGEST_VOLUME_NAME} letters, digits and any of _.-, with a letter or digit first",
            describe(value),
        )
    return result


def sanitize_identifier(value: str) -> str:
    """Converts text to an ACIdentifier: other characters become ``_``. :raises ManifestError: the result is
    empty."""
    return _sanitize(value, _IDENTIFIER, "_", "an identifier")


def sanitize_name(value: str) -> str:
    """Converts text to an ACName: other characters become ``-``. :raises ManifestError: the result is empty."""
    return _sanitize(value, _NAME, "-", "a name")


def _sanitize(value: str, allowed: frozenset[str], filler: str, kind: str) -> str:
    kept: list[str] = []
    replaced = False
    for character in value.lower():
        if character in allowed:
            kept.append(character)
            replaced = False
        elif not replaced:
            kept.append(filler)
            replaced = True
    result = "".join(kept).strip("-._~/")
    if not result:
        raise ManifestError("$", f"text that {kind} can be made of (a letter or digit at least)", describe(value))
    return result


def image_id(value: object, path: str) -> str:
    """A whole image ID: ``sha512-`` and 128 hex digits; lower case on output."""
    result = text(value, path).lower()
    if not is_image_id(result):
        raise ManifestError(path, 'an image ID ("sha512-" and 128 hex digits)', describe(value))
    return result


def fits(check: Callable[[object, str], object], value: object) -> bool:
    """Whether a check of this module accepts the value."""
    try:
        check(value, "$")
    except ManifestError:
        return False
    return True


def is_image_id(value: str) -> bool:
    """Whether ``value`` is a whole image ID in canonical form."""
    return len(value) == 135 and value.startswith("sha512-") and _HEX.issuperset(value[7:])


def is_image_id_prefix(value: str) -> bool:
    """Whether ``value`` may be the beginning of an image ID, typed by a person or in an early document.

    It must start with ``sha512-`` or (early documents) ``sha256-``, followed by at least one digit.
    """
    algorithm, _, digits = value.partition("-")
    most = _DIGEST_DIGITS.get(algorithm, 0)
    return 0 < len(digits) <= most and _HEX.issuperset(digits)


def content_id(value: object, path: str) -> str:
    """An image ID in a document: a whole one, or an early document's ``sha256-…`` with at least
    :data:`SHORTEST_ID` digits; lower case on output."""
    result = text(value, path).lower()
    whole_or_cut = is_image_id(result) or (
        result.startswith("sha256-") and is_image_id_prefix(result) and len(result) >= 7 + SHORTEST_ID
    )
    if not whole_or_cut:
        expected = 'an image ID ("sha512-" and 128 hex digits, or an early document\'s "sha256-" and up to 64)'
        raise ManifestError(path, expected, describe(value))
    return result


def semver(value: object, path: str) -> str:
    """A Semantic Version 2.0.0, kept as written."""
    result = text(value, path)
    rest, plus, build = result.partition("+")
    core, minus, release = rest.partition("-")
    numbers = core.split(".")
    good = (
        len(numbers) == 3
        and all(_semver_number(number) for number in numbers)
        and (not minus or all(_semver_word(part, release=True) for part in release.split(".")))
        and (not plus or all(_semver_word(part, release=False) for part in build.split(".")))
    )
    if not good:
        raise ManifestError(path, "a semantic version (MAJOR.MINOR.PATCH)", describe(value))
    return result


def _semver_number(part: str) -> bool:
    return bool(part) and _DIGITS.issuperset(part) and (part == "0" or part[0] != "0")


def _semver_word(part: str, *, release: bool) -> bool:
    if not part or not _SEMVER.issuperset(part):
        return False
    return not release or not _DIGITS.issuperset(part) or _semver_number(part)


def ac_version(value: object, path: str) -> str:
    """``acVersion``: any 0.x version of the specification, kept as written."""
    result = semver(value, path)
    if not result.startswith("0."):
        raise ManifestError(path, "a 0.x version of the App Container specification", describe(value))
    return result


def timestamp(value: object, path: str) -> str:
    """RFC 3339 with ``T``, kept as written; a leap second is accepted."""
    result = text(value, path)
    if not _is_timestamp(result):
        raise ManifestError(path, "an RFC 3339 time (2006-01-02T15:04:05Z)", describe(value))
    return result


def _is_timestamp(value: str) -> bool:
    date, t, rest = value.partition("T")
    if not t or len(date) != 10 or date[4] != "-" or date[7] != "-":
        return False
    if rest.endswith("Z"):
        clock = rest[:-1]
    else:
        clock, zone = rest[:-6], rest[-6:]
        if len(zone) != 6 or zone[0] not in "+-" or zone[3] != ":":
            return False
        if not (_between(zone[1:3], 0, 23) and _between(zone[4:], 0, 59)):
            return False
    seconds, dot, fraction = clock.partition(".")
    if dot and not (fraction and _DIGITS.issuperset(fraction)):
        return False
    if len(seconds) != 8 or seconds[2] != ":" or seconds[5] != ":":
        return False
    if not (_between(seconds[:2], 0, 23) and _between(seconds[3:5], 0, 59) and _between(seconds[6:], 0, 60)):
        return False
    return _is_date(date[:4], date[5:7], date[8:])


def _is_date(year: str, month: str, day: str) -> bool:
    if not (_between(year, 0, 9999) and _between(month, 1, 12)):
        return False
    days = _MONTH_DAYS[int(month) - 1]
    number = int(year)
    if month == "02" and (number % 4 != 0 or (number % 100 == 0 and number % 400 != 0)):
        days = 28
    return _between(day, 1, days)


def _between(digits: str, low: int, high: int) -> bool:
    return bool(digits) and _DIGITS.issuperset(digits) and low <= int(digits) <= high


def http_url(value: object, path: str) -> str:
    """An absolute URL whose scheme is http or https."""
    result = text(value, path)
    scheme, colon, rest = result.partition("://")
    host = rest.split("/", 1)[0].split("?", 1)[0].split("#", 1)[0].rpartition("@")[2]
    good = (
        colon
        and scheme.lower() in ("http", "https")
        and host.partition(":")[0]
        and result.isprintable()
        and " " not in result
    )
    if not good:
        raise ManifestError(path, "an http or https URL", describe(value))
    return result


def pod_uuid(value: object, path: str = "$.uuid") -> str:
    """An RFC 4122 UUID, in canonical form: lower case, 8-4-4-4-12."""
    result = text(value, path).lower()
    groups = result.split("-")
    if [len(group) for group in groups] != [8, 4, 4, 4, 12] or not _HEX.issuperset("".join(groups)):
        raise ManifestError(path, "a UUID (8-4-4-4-12 hex digits)", describe(value))
    return result


def environment_name(value: object, path: str) -> str:
    """Name of an environment variable: ``[A-Za-z_][A-Za-z0-9_.-]*``."""
    result = text(value, path)
    if not (result and result[0] in _ENV_FIRST and _ENV.issuperset(result)):
        raise ManifestError(
            path, "a variable's name (a letter or _, then letters, digits and any of _.-)", describe(value)
        )
    return result


def absolute_path(value: object, path: str) -> str:
    """An absolute path, kept as written."""
    result = word(value, path)
    if not result.startswith("/"):
        raise ManifestError(path, "an absolute path", describe(value))
    return result


def inner_path(value: object, path: str) -> str:
    """An absolute path inside an app's filesystem, kept as written. ``..`` is refused: the target of such a path
    would depend on the image's links, so checks for overlap could not work on names."""
    result = absolute_path(value, path)
    if ".." in result.split("/"):
        raise ManifestError(path, "an absolute path without ..", describe(value))
    return result


def host_name(value: object, path: str) -> str:
    """A host name: labels with dots between them."""
    result = text(value, path)
    if len(result) > _HOSTNAME_LIMIT or not all(
        0 < len(label) <= _LABEL_LIMIT and _HOST_LETTERS.issuperset(label) and label.strip("-") == label
        for label in result.split(".")
    ):
        expected = "letters, digits and - inside, in parts of at most 63 with dots between, 64 in all"
        raise ManifestError(path, f"a host's name ({expected})", describe(value))
    return result


def hosts_name(value: object, path: str) -> str:
    """A name in ``/etc/hosts``: one word, which begins no comment."""
    result = text(value, path)
    if not result.isprintable() or not result or set(result) & set(" #"):
        raise ManifestError(path, "a name without spaces", describe(value))
    return result


def resolv_word(value: object, path: str) -> str:
    """One word of a resolv.conf."""
    result = text(value, path)
    if not 0 < len(result) <= RESOLV_WORD_LIMIT or not result.isprintable() or set(result) & set(" #;"):
        raise ManifestError(path, f"one word of at most {RESOLV_WORD_LIMIT} letters", describe(value))
    return result


def search_domain(value: object, path: str) -> str:
    """A domain in which names are searched; ``.`` alone turns the search off."""
    result = resolv_word(value, path)
    labels = result.removesuffix(".").split(".")
    if result != "." and not all(0 < len(label.encode()) <= _LABEL_LIMIT for label in labels):
        raise ManifestError(path, "a domain: parts of 1 to 63 letters with dots between", describe(value))
    return result


def ip_address(value: object, path: str) -> str:
    """An address of IPv4 or IPv6, without a prefix length."""
    result = text(value, path)
    if not address_family(result):
        raise ManifestError(path, "an IPv4 or IPv6 address", describe(value))
    return result


def address_family(text: str) -> int:
    """Returns 4 or 6 for an address without prefix length; 0 if the text is not an address."""
    import _socket

    for family, number in ((_socket.AF_INET, 4), (_socket.AF_INET6, 6)):
        try:
            _socket.inet_pton(family, text)
        except (OSError, ValueError):  # ValueError: a NUL or a character beyond ASCII
            continue
        return number
    return 0


def is_cidr(text: str) -> bool:
    """Whether ``text`` is an address, a slash and a prefix length that its family allows."""
    address, slash, length = text.partition("/")
    family = address_family(address)
    if not (family and slash and length.isascii() and length.isdigit() and len(length) <= 3):
        return False
    return int(length) <= (32 if family == 4 else 128)
