"""The call-ins ``app-add``, ``app-start``, ``app-stop``, ``app-rm``, ``app-update`` and ``app-reopen-log``, which
change a running pod.

Each takes the app's name. ``app-add`` reads the app's part of the manifest from descriptor 3, ``app-update`` its
new plan; ``app-stop`` takes ``--timeout SECONDS``. They send a request to the supervisor, and print its error.
"""

from __future__ import annotations

import os
import sys

from kurma_stager_default.inside.callins.control_client import Refused, ask
from kurma_stager_default.inside.errors import SetupError, complain
from kurma_stager_default.inside.pod.control_socket import DOCUMENT

_DESCRIPTOR = 3
_USAGE = 2
_FAILED = 1


def main() -> int:
    verb = os.path.basename(sys.argv[0])
    try:
        name, timeout = _arguments(verb, sys.argv[1:])
    except ValueError:
        more = " [--timeout SECONDS]" if verb == "app-stop" else ""
        complain(f"usage: {verb} APP{more}")
        return _USAGE
    try:
        if verb == "app-add":
            ask({"do": "add", "app": name}, _document())
        elif verb == "app-update":
            ask({"do": "update", "app": name}, _document())
        elif verb == "app-stop":
            ask({"do": "stop", "app": name, "timeout": timeout})
        elif verb == "app-rm":
            ask({"do": "rm", "app": name})
        else:
            ask({"do": verb.removeprefix("app-"), "app": name})
    except Refused as refused:
        complain(str(refused))
        return refused.code
    except (SetupError, OSError) as error:
        complain(str(error))
        return _FAILED
    return 0


def _arguments(verb: str, words: list[str]) -> tuple[str, float | None]:
    """Parses the app's name and the timeout. :raises ValueError: the arguments are wrong."""
    if verb == "app-stop" and len(words) == 3 and words[1] == "--timeout":
        seconds = float(words[2])
        if not 0 <= seconds < 1e9:
            raise ValueError
        return words[0], seconds
    if len(words) != 1 or not words[0] or "/" in words[0] or words[0].startswith("."):
        raise ValueError
    return words[0], None


def _document() -> bytes:
    """Reads the document; of one that is too long for the supervisor, at most a little more than its limit."""
    text = b""
    while len(text) <= DOCUMENT and (data := os.read(_DESCRIPTOR, 65536)):
        text += data
    return text
