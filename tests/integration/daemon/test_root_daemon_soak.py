"""Many pods by way of a daemon that is killed all the time; 5,000 by ``./dev soak daemon``."""

import contextlib
import os

import pytest

from tests.integration.daemon.soak import Soak

pytestmark = [pytest.mark.root, pytest.mark.full]


def test_pods_of_a_daemon_that_is_killed(make_house):
    house = make_house({"stop_timeout": 1})
    soak = Soak(house, int(os.environ.get("KURMA_TEST_SEED", "1")))
    count = int(os.environ.get("KURMA_TEST_PODS", "120"))
    with contextlib.closing(soak):
        assert soak.run(count), soak.wrong
        assert soak.steady(max(count // 5, 40), every=min(100, max(count // 10, 20))), soak.wrong
    house.client.network_rm("default")
