"""``kurma.io/group-policy``: which groups an app gets, of its image and of the caller (C8)."""

from __future__ import annotations

from typing import Any

import pytest

from kurma_core.api.pods import AppOverrides
from kurma_core.appc.image import App, NameValue
from kurma_core.appc.pod import PodApp, RuntimeImage
from kurma_core.errors import UsageError
from kurma_core.pods.prepare.app_settings import overridden, with_group_policy

#: The image's /etc/passwd and /etc/group: alice (1000) is in the group 1000, and besides in 50 and 60.
ACCOUNTS = {"alice": ("1000", (50, 60)), "1000": ("1000", (50, 60)), "0": ("0", (10,))}
IMAGE = App(exec=("/x",), user="alice", group="1000", supplementary_gids=(50, 60))


def groups(policy: str | None, *, pod: App | None = None, **given: Any) -> tuple[str, str, tuple[int, ...]]:
    def groups_of(user: str) -> tuple[str, tuple[int, ...]]:
        return ACCOUNTS.get(user, ("0", ()))

    notes = () if policy is None else (NameValue("kurma.io/group-policy", policy),)
    entry = PodApp("a", RuntimeImage(None, "example.com/a"), app=pod, annotations=notes)
    overrides = AppOverrides(**given)
    app = overridden(pod or IMAGE, overrides, None, groups_of)
    app = with_group_policy(entry, app, overrides, groups_of)
    return app.user, app.group, app.supplementary_gids


@pytest.mark.parametrize(
    ("given", "usual", "merged", "strict"),
    [
        ({}, ("alice", "1000", (50, 60)), ("alice", "1000", (50, 60)), ("alice", "1000", ())),
        (
            {"supplementary_gids": (7, 50)},
            ("alice", "1000", (50, 60, 7)),
            ("alice", "1000", (50, 60, 7)),
            ("alice", "1000", (7, 50)),
        ),
        ({"user": "1000"}, ("1000", "1000", (50, 60)), ("1000", "1000", (50, 60)), ("1000", "1000", ())),
        ({"user": "0", "group": "9"}, ("0", "9", ()), ("0", "9", (10,)), ("0", "9", ())),
        (
            {"user": "4000", "supplementary_gids": (7,)},
            ("4000", "0", (7,)),
            ("4000", "0", (7,)),
            ("4000", "0", (7,)),
        ),
        (
            {"user": "alice", "group": "5", "supplementary_gids": (7,)},
            ("alice", "5", (7,)),
            ("alice", "5", (50, 60, 7)),
            ("alice", "5", (7,)),
        ),
    ],
)
def test_what_each_policy_makes_of_a_request(given: Any, usual: Any, merged: Any, strict: Any) -> None:
    assert groups(None, **given) == usual
    assert groups("merge", **given) == merged
    assert groups("strict", **given) == strict


def test_groups_of_the_pods_file_are_given_ones() -> None:
    pod = App(exec=("/x",), user="0", group="0", supplementary_gids=(77,))
    assert groups("strict", pod=pod) == ("0", "0", (77,))
    assert groups("merge", pod=pod, supplementary_gids=(8,)) == ("0", "0", (77, 8, 10))
    assert groups("strict", pod=pod, user="1000") == ("1000", "1000", ())


def test_another_policy_is_refused() -> None:
    with pytest.raises(UsageError, match=r"its annotation kurma\.io/group-policy is 'all'"):
        groups("all")
