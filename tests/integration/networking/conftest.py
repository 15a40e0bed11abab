"""The surroundings of the tests' host."""

import pytest

from tests.integration.networking.world import world_around


@pytest.fixture
def world():
    """Machines around the host: see :mod:`tests.integration.networking.world`."""
    with world_around() as world:
        yield world
