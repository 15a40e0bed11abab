"""The whole life of many pods leaves the machine as it was; 200 by ``./dev soak pods``."""

import os

import pytest

from tests.integration.pods import soak

pytestmark = [pytest.mark.root, pytest.mark.full]


def test_the_lives_of_many_pods(house):
    count = int(os.environ.get("KURMA_TEST_PODS", "20"))
    assert soak.soak(house, count)
    house.client.network_rm("default")
