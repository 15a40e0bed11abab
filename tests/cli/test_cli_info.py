"""``kurma info``, for people."""

from __future__ import annotations

from kurma_core.cli.commands.system import _words


def test_initial_pods_and_images_are_told_in_words() -> None:
    pods = [
        {"name": "web", "pod": "0f1a", "state": "present", "error": None, "next": None},
        {
            "name": "/a.aci",
            "pod": None,
            "state": "failed",
            "error": "no such file",
            "next": "2026-01-01T00:00:00Z",
        },
    ]
    daemon = {"pid": 7, "recovered": True, "initialPods": pods, "prefetchImages": []}
    assert _words(daemon) == "pid 7; recovered yes; initialPods web present, /a.aci failed (no such file)"
