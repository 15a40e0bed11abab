"""The default stager and labels of security modules: who cannot have his does not run (X4)."""

import pytest

from kurma_core.errors import StagerError
from kurma_core.models.isolator import IsolatorPlan
from tests.integration.machine import has_apparmor

pytestmark = [pytest.mark.root, pytest.mark.vm]


@pytest.mark.parametrize(
    ("plan", "what", "where_it_is", "elsewhere"),
    [
        (
            IsolatorPlan(apparmor="kurma-none"),
            "the AppArmor profile kurma-none",
            "is not loaded",
            "cannot be set: Invalid argument",
        ),
        (
            IsolatorPlan(selinux="a:b:c:s0"),
            "the SELinux context a:b:c:s0",
            "is none of this kernel's",
            "is none of this kernel's",
        ),
    ],
    ids=["apparmor", "selinux"],
)
def test_a_label_that_the_kernel_does_not_take_keeps_the_app_from_running(
    pods, plan, what, where_it_is, elsewhere
):
    """A profile may be unloaded between the compiler's look and the start; in no case the app runs without."""
    pod = pods({"main": {"exec": ["/bin/sh", "-c", "echo ran"], "user": "0", "group": "0"}}, plans={"main": plan})
    with pytest.raises(StagerError) as caught:
        pod.started()
    assert f"app main: {what} {where_it_is if has_apparmor() else elsewhere}" in str(caught.value)
    assert (pod.app()["exitCode"], pod.app()["exitReason"]) == (125, "start-failed")
    assert pod.log() == ""
