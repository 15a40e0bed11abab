"""What every test with real parts stands on: a "host" of its own, and the proof that nothing is left behind."""

import os
import time

import pytest

from tests.integration import leftovers

#: Seconds that what was ended may take to go.
_PATIENCE = 20.0


def pytest_collection_modifyitems(items):
    """Without the mark a test would run beside the fast ones, on the machine itself."""
    here = os.path.dirname(__file__)
    unmarked = [
        item.nodeid for item in items if item.path.is_relative_to(here) and not item.get_closest_marker("root")
    ]
    if unmarked:
        raise pytest.UsageError(f"not marked as root's: {', '.join(unmarked)}")


@pytest.fixture(scope="session", autouse=True)
def own_host(request):
    """Root tests make mounts, namespaces and networks: never on the machine itself."""
    if not any(item.get_closest_marker("root") for item in request.session.items):
        return
    if os.geteuid() != 0 or os.environ.get("KURMA_TEST_HOST") != "1":
        pytest.fail("these tests need root and a host of their own: ./dev test", pytrace=False)


@pytest.fixture(scope="session")
def suspects(own_host, tmp_path_factory):
    """Whoever left them, they must have gone by the end of the run."""
    found = leftovers.Suspects(str(tmp_path_factory.getbasetemp()))
    yield found
    left = _gone(found.left)
    assert not left, f"left behind: {', '.join(sorted(left))}"


@pytest.fixture(autouse=True)
def nothing_left(own_host, suspects, request):
    """Mounts, namespaces, cgroups, links and processes are, after each test, as they were before it."""
    before, cgroups = leftovers.state(), leftovers.cgroups()
    yield
    left = _gone(lambda: (leftovers.state() - before) | suspects.left_since(cgroups, request.node.nodeid))
    suspects.test_is_over()
    assert not left, f"the test left behind: {', '.join(sorted(left))}"


def _gone(look):
    """What ``look()`` still finds when patience is over."""
    deadline = time.monotonic() + _PATIENCE
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
