"""The default stager, alone: real apps in the root that the core makes for it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.root


def sh(script, **fields):
    return {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0", **fields}


def test_two_apps_and_their_exit_codes(pods):
    """H5: codes, reasons, times, logs; the stager itself ends with 0 (G6)."""
    pod = pods({"good": sh("echo out; echo err >&2"), "bad": sh("echo $$; exit 42")})
    assert pod.ended() == 0, pod.output()
    good, bad = pod.app("good"), pod.app("bad")
    assert (good["exitCode"], good["exitReason"], good["exited"]) == (0, "exited", True)
    assert (bad["exitCode"], bad["exitReason"]) == (42, "exited")
    assert good["startedAt"] <= good["finishedAt"]
    assert pod.log("good.log", b"stdout") == "out\n"
    assert pod.log("good.log", b"stderr") == "err\n"
