"""Held to the contract of isolators, on hosts of every generation."""

from __future__ import annotations

import pytest
from kurma_isolators_linux import plugin

from kurma_core.hookspecs import Isolator
from kurma_core.models import IsolatorPlan
from kurma_core.testing import load_driver
from kurma_core.testing.isolators import HOSTS, IsolatorContract


class TestLinuxIsolators(IsolatorContract):
    good = (
        ("os/linux/no-new-privileges", True, "app"),
        ("os/linux/no-new-privileges", False, "app"),
    )
    bad = (
        ("os/linux/no-new-privileges", "true", "app"),
        ("os/linux/no-new-privileges", True, "pod"),
    )

    @pytest.fixture
    def driver(self, tmp_path) -> Isolator:
        return load_driver(plugin, tmp_path)


def test_no_new_privileges(tmp_path) -> None:
    driver = load_driver(plugin, tmp_path)
    for value in (True, False):
        compiled = driver.compile("os/linux/no-new-privileges", value, "app", HOSTS["cgroup-v1"])
        assert compiled.plan == IsolatorPlan(no_new_privileges=value)
