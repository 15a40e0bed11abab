"""The surroundings that other tests stand on are as they say: who reaches whom, and who does not."""

import pytest

from tests.integration.networking.world import BEYOND, HOST, NEIGHBOUR, SERVER

pytestmark = pytest.mark.root


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_all_reach_each_other_by_both_families(world, family):
    with world.host.listen(8000) as host, world.neighbour.listen(8000) as near, world.server.listen(8000) as far:
        assert world.host.reaches(near, NEIGHBOUR[family], 8000) == HOST[family]
        assert world.host.reaches(far, SERVER[family], 8000) == HOST[family]
        assert world.neighbour.reaches(host, HOST[family], 8000) == NEIGHBOUR[family]
        assert world.server.reaches(host, HOST[family], 8000) == SERVER[family]
        assert world.router.reaches(far, SERVER[family], 8000) == BEYOND[family]
    with world.server.receive(8001, ("0.0.0.0", "::")[family]) as far:
        assert world.host.reaches(far, SERVER[family], 8001) == HOST[family]


def test_nobody_out_there_knows_a_way_to_private_addresses(world):
    world.host.ip("address", "add", "10.99.0.1/24", "dev", "lo")
    try:
        with world.host.listen(8000) as host:
            assert world.neighbour.is_cut_off(host, "10.99.0.1", 8000)
            assert world.server.is_cut_off(host, "10.99.0.1", 8000)
            assert not world.server.is_cut_off(host, HOST[0], 8000)
    finally:
        world.host.ip("address", "del", "10.99.0.1/24", "dev", "lo")
