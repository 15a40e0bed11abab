"""S1: a store in which processes are killed all the time, at any step, call or moment; see :mod:`.killing`."""

from __future__ import annotations

import random

import pytest

from tests.image_store.killing import kill_test

pytestmark = [pytest.mark.root, pytest.mark.full]


def test_killed_again_and_again() -> None:
    """A seed of its own each time: what fails names it."""
    result = kill_test(120, random.SystemRandom().randrange(1 << 32))
    assert result.kills >= 120
    assert result.looks == result.rounds
