"""What every test with real parts stands on: a "host" of its own, and the proof that nothing is left behind."""

import os
import time

import pytest

from tests.integration import leftovers

#: Seconds that what was ended may take to go.
_PATIENCE = 5.0


@pytest.fixture(scope="session", autouse=True)
def own_host(request):
    """Root tests make mounts, namespaces and networks: never on the machine itself."""
    if not any(item.get_closest_marker("root") for item in request.session.items):
        return
    if os.geteuid() != 0 or os.environ.get("KURMA_TEST_HOST") != "1":
        pytest.fail("these tests need root and a host of their own: ./dev test", pytrace=False)


@pytest.fixture(autouse=True)
def nothing_left(own_host, tmp_path_factory):
    """Mounts, namespaces, cgroups, links and processes are, after each test, as they were before it."""
    ours = str(tmp_path_factory.getbasetemp())
    before = leftovers.state(ours)
    yield
    deadline = time.monotonic() + _PATIENCE
    left = leftovers.state(ours) - before
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = leftovers.fewer(left, leftovers.state(ours) - before)
    assert not left, f"the test left behind: {', '.join(sorted(left))}"
