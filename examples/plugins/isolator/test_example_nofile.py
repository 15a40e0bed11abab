"""The example isolator, against the contract of all isolators."""

import kurma_example_nofile
import pytest
from kurma_testing.isolators import IsolatorContract

NAME = kurma_example_nofile.NAME


@pytest.mark.kurma_driver(kurma_example_nofile, {"most": 200})
class TestNofile(IsolatorContract):
    good = ((NAME, {"limit": 100}, "app"), (NAME, {"limit": 9_999_999}, "app"), (NAME, {"limit": 1}, "pod"))
    bad = (
        (NAME, {"limit": 0}, "app"),
        (NAME, {"limit": "many"}, "app"),
        (NAME, {"limit": True}, "app"),
        (NAME, 5, "app"),
    )

    @pytest.mark.parametrize(("limit", "outcome", "soft"), [(100, "enforced", 100), (300, "modified", 200)])
    def test_what_it_becomes(self, driver, host, limit, outcome, soft):
        compiled = driver.compile(NAME, {"limit": limit}, "app", host)
        assert (compiled.outcome, compiled.plan.rlimits) == (outcome, {"nofile": (soft, soft)})
