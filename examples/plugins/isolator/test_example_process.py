"""The example isolators beyond the specification's, against the contract of all isolators."""

import kurma_example_process
import pytest
from kurma_example_process import GROUPS, IO, NICE, REALTIME, UMASK
from kurma_testing.isolators import IsolatorContract

from kurma_core.hookspecs.isolator import Power
from kurma_core.models.isolator import IoPriority, IsolatorPlan, Scheduling


@pytest.mark.kurma_driver(kurma_example_process)
class TestProcess(IsolatorContract):
    good = (
        *((UMASK, "0027", "app"), (UMASK, "7", "app"), (NICE, 5, "app"), (NICE, -20, "app")),
        *((IO, {"class": "idle"}, "app"), (IO, {"class": "realtime", "level": 0}, "app")),
        *((GROUPS, 0, "app"), (GROUPS, 10, "pod")),
    )
    bad = (
        *((UMASK, "1000", "app"), (UMASK, 18, "app"), (UMASK, "0", "pod"), (NICE, 20, "app"), (NICE, 0, "pod")),
        *((IO, {"class": "fast"}, "app"), (IO, {"level": 3}, "app"), (GROUPS, -1, "app")),
    )

    def test_what_they_become(self, driver, host):
        def plan(name, value):
            return driver.compile(name, value, "app", host).plan

        assert plan(UMASK, "027") == IsolatorPlan(umask=0o27)
        assert plan(NICE, 5) == IsolatorPlan(scheduling=Scheduling(nice=5))
        assert plan(IO, {"class": "idle", "level": 7}) == IsolatorPlan(io_priority=IoPriority("idle", 7))
        assert len(plan(GROUPS, 3).cgroup) == ("cgroup" in host.cgroups)

    def test_what_needs_a_grant(self, driver, host):
        assert driver.powers(NICE, 0, "app", host) == driver.powers(IO, {"class": "idle"}, "app", host) == ()
        assert driver.powers(NICE, -1, "app", host) == (Power(NICE),)
        assert driver.powers(IO, {"class": "realtime"}, "app", host) == (Power(REALTIME),)
