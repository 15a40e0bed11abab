"""Words of the command line that several commands read alike."""

from __future__ import annotations

import os

from kurma_core.errors import UsageError

#: Checks that ``--insecure-options`` may relax.
INSECURE = ("image", "tls", "http", "pubkey")


def seconds(text: str, option: str) -> float:
    """``90``, ``90s``, ``1h30m``.

    :raises UsageError: it is no duration.
    """
    from kurma_core.config_schema import duration

    try:
        return duration(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError:
        raise UsageError(f"{option}: {text!r} is no duration", hint="write 90, 90s, 5m or 1h30m") from None


def since(text: str, option: str = "--since") -> float:
    """A time in seconds since the epoch, from RFC 3339 or from a duration that ends now.

    :raises UsageError: it is neither.
    """
    import time

    if text[:4].isdigit() and text[4:5] == "-":
        from datetime import datetime

        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            hint = "write 2024-05-31T12:00:00Z, or 10m for the last ten minutes"
            raise UsageError(f"{option}: {text!r} is no time", hint=hint) from None
    return time.time() - seconds(text, option)


def signal_number(text: str) -> int:
    """``9``, ``KILL``, ``SIGKILL``, ``sigkill``.

    :raises UsageError: there is no such signal.
    """
    import signal

    if text.isdecimal() and 0 < int(text) <= 64:
        return int(text)
    name = text.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    try:
        return signal.Signals[name].value
    except KeyError:
        raise UsageError(f"no signal {text!r}", hint="by number or by name: 15, TERM, SIGTERM") from None


def insecure(texts: tuple[str, ...]) -> frozenset[str]:
    """``--insecure-options a,b``, given any number of times.

    :raises UsageError: an unknown one.
    """
    words = frozenset(word for text in texts for word in text.split(",") if word)
    unknown = sorted(words.difference(INSECURE))
    if unknown:
        raise UsageError(f"--insecure-options: no option {unknown[0]!r}", hint=f"there are: {', '.join(INSECURE)}")
    return words


def pair(text: str, option: str) -> tuple[str, str]:
    """``NAME=VALUE``.

    :raises UsageError: it is none.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{option}: expected NAME=VALUE, found {text!r}")
    return name, value


def environment(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """``-e NAME=VALUE``, and ``-e NAME`` from the caller's environment; one that is not set there is left out."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"--env: expected NAME=VALUE or NAME, found {text!r}")
        if equals:
            found.append((name, value))
        elif name in os.environ:
            found.append((name, os.environ[name]))
    return tuple(found)


def environment_file(path: str) -> tuple[tuple[str, str], ...]:
    """A line each, ``NAME=VALUE`` or ``NAME``, taken as they are, without quotes; empty lines and such that begin
    with ``#`` are skipped.

    :raises UsageError: it cannot be read, or holds a line that is none of these.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().split("\n")
    except OSError as error:
        raise UsageError(f"--env-file: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--env-file: {path} is not UTF-8") from None
    kept = tuple(line.rstrip("\r") for line in lines if line.strip() and not line.lstrip().startswith("#"))
    bad = next((line for line in kept if line.startswith("=")), None)
    if bad is not None:
        raise UsageError(f"--env-file: {path}: expected NAME=VALUE or NAME, found {bad!r}")
    return environment(kept)
