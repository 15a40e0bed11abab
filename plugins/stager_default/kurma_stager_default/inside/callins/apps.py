"""``/opt/stager/app-add``, ``app-start``, ``app-stop``, ``app-rm``: a pod changes while it runs (G10).

Each takes the app's name. ``app-add`` gets the app's part of the manifest on descriptor 3, ``app-stop`` may be
told how many seconds the app has: ``--timeout SECONDS``. The supervisor does it; this asks, and says what went
wrong.
"""

from __future__ import annotations

import os
import sys

from kurma_stager_default.inside.callins.control_client import Refused, ask
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.pod.control_socket import DOCUMENT

_DESCRIPTOR = 3
_USAGE = 2
_UNKNOWN = 2
_FAILED = 1


def main() -> int:
    verb = os.path.basename(sys.argv[0])
    try:
        name, timeout = _arguments(verb, sys.argv[1:])
    except ValueError:
        more = " [--timeout SECONDS]" if verb == "app-stop" else ""
        print(f"usage: {verb} APP{more}", file=sys.stderr, flush=True)
        return _USAGE
    try:
        if verb == "app-add":
            ask({"do": "add", "app": name}, _document())
        elif verb == "app-stop":
            ask({"do": "stop", "app": name, "timeout": timeout})
        elif verb == "app-rm":
            _remove(name)
        else:
            ask({"do": "start", "app": name})
    except Refused as refused:
        print(refused, file=sys.stderr, flush=True)
        return refused.code
    except (SetupError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        return _FAILED
    return 0


def _arguments(verb: str, words: list[str]) -> tuple[str, float | None]:
    """:raises ValueError: they are not what the call-in takes."""
    if verb == "app-stop" and len(words) == 3 and words[1] == "--timeout":
        seconds = float(words[2])
        if not 0 <= seconds < 1e9:
            raise ValueError
        return words[0], seconds
    if len(words) != 1 or not words[0] or "/" in words[0] or words[0].startswith("."):
        raise ValueError
    return words[0], None


def _document() -> bytes:
    """The whole of it, or one byte more than the supervisor takes."""
    text = b""
    while len(text) <= DOCUMENT and (data := os.read(_DESCRIPTOR, 65536)):
        text += data
    return text


def _remove(name: str) -> None:
    """Repeatable: what the supervisor has forgotten already is taken from the disk all the same."""
    try:
        ask({"do": "rm", "app": name})
    except Refused as refused:
        if refused.code != _UNKNOWN:
            raise
    from kurma_core.linux import beneath
    from kurma_stager_default.inside.pod.pod_cgroups import PodGroups
    from kurma_stager_default.inside.streams import app_log

    tree = PodGroups().app(name)
    tree.kill()
    tree.remove()
    apps = os.open("/pod/apps", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        beneath.remove_tree(apps, name)
    finally:
        os.close(apps)
    for file in os.listdir("/pod/logs"):
        if app_log.app_of(file) == name:
            os.unlink(f"/pod/logs/{file}")
    try:  # noqa: SIM105 - contextlib costs every call
        os.unlink(f"/pod/hosts/{name}")
    except FileNotFoundError:
        pass
