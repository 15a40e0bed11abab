"""The contract suite for plugins of :class:`kurma_core.hookspecs.isolator.IsolatorHooks`, to be subclassed::

@pytest.mark.kurma_driver(my_module)
class TestMyIsolators(IsolatorContract):
    good = (("example.com/thing", {"limit": 3}, "app"),)
    bad = (("example.com/thing", {"limit": "many"}, "app"),)
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from kurma_core.errors import IsolatorError, ManifestError
from kurma_core.hookspecs.isolator import Compiled, IsolatorHooks, IsolatorHost
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.value import replace
from kurma_testing.contract import STRANGE, DriverContract, check_refusal, nothing_left_open, refusing

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import Driver

#: Name, value, scope.
Case = tuple[str, Any, str]

_V1 = dict.fromkeys(("cpu", "memory", "blkio", "pids", "devices", "freezer", "cpuset"), 1)
_V2 = dict.fromkeys(("cpu", "memory", "io", "pids", "cpuset", "cgroup"), 2)
#: Different hosts: with cgroup v1, with v2, and without cgroups.
HOSTS = {
    "cgroup-v1": IsolatorHost(cgroups=_V1, cpus=2),
    "cgroup-v2": IsolatorHost(cgroups=_V2, cpus=64),
    "no-cgroups": IsolatorHost(cgroups={}, cpus=1),
}


class IsolatorContract(DriverContract):
    """Subclasses have the mark ``kurma_driver``, at least one ``good`` case per name, and ``bad`` cases."""

    #: Cases that compile on every host.
    good: Sequence[Case] = ()
    #: Cases that are refused on every host.
    bad: Sequence[Case] = ()

    @pytest.fixture(params=sorted(HOSTS))
    def host(self, request: pytest.FixtureRequest) -> IsolatorHost:
        return HOSTS[request.param]

    # -- the contract --

    def test_it_declares_its_isolators(self, declaration: Driver) -> None:
        names = declaration.isolators
        assert names
        assert len(set(names)) == len(names)
        assert all(name == name.strip().lower() for name in names)

    def test_its_defaults_are_declared(
        self, declaration: Driver, driver: IsolatorHooks, host: IsolatorHost
    ) -> None:
        given = {scope: {name: value for name, value, of in self.good if of == scope} for scope in ("app", "pod")}
        for scope in given:
            for names in ((), declaration.isolators):
                found = {name for name, _ in driver.defaults(scope, names, replace(host, pod=given["pod"]))}
                assert found <= set(declaration.default_isolators), scope

    def test_every_name_has_a_good_case(self, declaration: Driver) -> None:
        assert {name for name, _, _ in self.good} == set(declaration.isolators)
        assert self.bad, "there must be something that it refuses"

    def test_good_values_compile(self, driver: IsolatorHooks, host: IsolatorHost) -> None:
        for name, value, scope in self.good:
            compiled = driver.compile(name, value, scope, host)
            assert isinstance(compiled, Compiled)
            assert isinstance(compiled.plan, IsolatorPlan)
            assert compiled.outcome in ("enforced", "modified", "ignored"), (name, compiled.outcome)

    def test_the_outcome_is_honest(self, driver: IsolatorHooks, host: IsolatorHost) -> None:
        for name, value, scope in self.good:
            compiled = driver.compile(name, value, scope, host)
            if compiled.outcome == "ignored":
                assert compiled.plan == IsolatorPlan(), f"{name} is ignored, and yet sets something"
            if compiled.outcome != "enforced":
                assert compiled.note, f"{name} is {compiled.outcome}, and does not say how or why"

    def test_no_write_to_a_controller_that_is_not_there(self, driver: IsolatorHooks, host: IsolatorHost) -> None:
        for name, value, scope in self.good:
            for setting in driver.compile(name, value, scope, host).plan.cgroup:
                assert setting.controller in host.cgroups, (name, setting)

    def test_the_plan_is_right_for_its_scope(self, driver: IsolatorHooks, host: IsolatorHost) -> None:
        """The core refuses a plan with a wrong value, or a field without meaning for an app or a pod."""
        for name, value, scope in self.good:
            compiled = driver.compile(name, value, scope, host)
            compiled.plan.check(scope)
            if compiled.apps is not None:
                compiled.apps.check("app")

    def test_the_plan_can_be_written_down(self, driver: IsolatorHooks, host: IsolatorHost) -> None:
        for name, value, scope in self.good:
            document = driver.compile(name, value, scope, host).plan.to_json()
            assert json.loads(json.dumps(document)) == document, name

    def test_it_only_compiles(self, driver: IsolatorHooks, host: IsolatorHost) -> None:
        """The same input gives the same result, the value is not changed, and no descriptor is left open."""
        with nothing_left_open():
            for name, value, scope in self.good:
                given = copy.deepcopy(value)
                first = driver.compile(name, given, scope, host)
                assert driver.compile(name, copy.deepcopy(value), scope, host) == first, name
                assert given == value, f"{name} changed the value that it was given"

    def test_bad_values_are_refused(self, driver: IsolatorHooks, host: IsolatorHost) -> None:
        for name, value, scope in self.bad:
            with pytest.raises((IsolatorError, ManifestError)) as caught:
                driver.compile(name, value, scope, host)
            check_refusal(caught.value)

    def test_any_value_is_an_answer_or_a_refusal(
        self, declaration: Driver, driver: IsolatorHooks, host: IsolatorHost
    ) -> None:
        """Values come from untrusted manifests."""
        for name in declaration.isolators:
            for value in (*STRANGE, *({"limit": one} for one in STRANGE), {"set": 3}, *([one] for one in STRANGE)):
                for scope in ("app", "pod"):
                    with refusing(IsolatorError, ManifestError):
                        driver.compile(name, copy.deepcopy(value), scope, host)

    def test_powers_are_declared(self, declaration: Driver, driver: IsolatorHooks, host: IsolatorHost) -> None:
        """A value that needs a grant says so by a name that ``grants`` can have; no other value fails."""
        gated = declaration.gated
        for name, value, scope in self.good:
            for power in driver.powers(name, value, scope, host):
                isolator, _, part = power.name.partition("=")
                assert isolator in gated, power.name
                parts = gated[isolator]
                assert not part or parts is None or part in parts, power.name
