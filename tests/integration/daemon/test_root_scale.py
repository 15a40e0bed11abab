"""What many pods cost a daemon."""

import os

import pytest

from tests.integration.daemon.test_root_streams import memory
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]


def test_a_start_looks_at_each_pod_a_few_times(kurmad, make_house, ask, tmp_path):
    """How long that takes is for the benchmark: an eighth of a second with two hundred."""
    house = make_house()
    uuids, looks = [], []
    for count in (5, 25):
        uuids += [house.client.prepare(house.request("true")).uuid for _ in range(count - len(uuids))]
        log = tmp_path / str(count)
        # The daemon is our child, and strace beside it.
        watched = ("strace", "-D", "-f", "-qq", "-s", "4096", "-o", log, "-e", "trace=%file")
        daemon = kurmad(house=house, wrap=watched)
        assert len(ask(daemon).summaries()) == count
        assert daemon.end() == 0
        lines = log.read_text(errors="replace").splitlines()
        looks.append(sum(any(uuid in line for uuid in uuids) for line in lines))
    assert looks[0] >= 5
    assert looks[1] - looks[0] <= 20 * 16, "for each pod, there and at the first listing"
    for uuid in uuids:
        house.client.rm(uuid)


def test_a_pod_costs_it_less_than_a_hundred_kilobytes_and_few_descriptors(kurmad, ask):
    daemon = kurmad()
    client = ask(daemon)

    def descriptors():
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    def start(count):
        for _ in range(count):
            record = client.prepare(daemon.house.request("sleep 1000"))
            pods.append(client.launch(record.uuid).uuid)
        client.summaries()
        client.pods()

    pods = []
    start(15)
    before, open_before = memory(daemon), descriptors()
    start(30)
    until(lambda: memory(daemon) - before < 30 * 100, "its memory")
    until(lambda: descriptors() - open_before <= 30 * 5, "its descriptors")
    for uuid in pods:
        client.rm(uuid, force=True)
