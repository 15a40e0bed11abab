"""The pytest plugin of ``kurma-testing``.

- ``@pytest.mark.kurma_driver(WHAT, OPTIONS)`` makes the fixtures ``make_driver`` and ``driver``, for the suites of
  :mod:`kurma_testing` and for other tests.
- ``@pytest.mark.kurma_root`` marks tests that need root and a host of their own.
- ``pytest --kurma-host`` runs all tests in such a host: mounts and a network apart from the machine's.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kurma_testing

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import Driver
    from kurma_testing.contract import MakeDriver

# Failures of a suite show the compared values. pytest rewrites the assertions of a plugin's distribution by
# itself, unless it is installed as editable.
pytest.register_assert_rewrite(
    *(
        f"{kurma_testing.__name__}.{module.name}"
        for module in pkgutil.iter_modules(kurma_testing.__path__)
        if module.name != "plugin"
    )
)

_DRIVER = """kurma_driver(what, options={}, skips=False): the plugin that `driver` and `make_driver` are made of.
what: its module, or group and name of its entry point, ("kurma.stagers", "solo"). options: its section of
kurma.yml. skips: PluginSkipped skips the test"""
#: Set in the environment of such a host, for processes that pytest starts.
_IN_HOST = "KURMA_TEST_HOST"
_ROOT = "kurma_root: needs root and a host of its own: `pytest --kurma-host`"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("kurma").addoption(
        "--kurma-host",
        action="store_true",
        help="run the tests marked kurma_root: as root, with mounts and a network that the machine does not see",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (_DRIVER.replace("\n", " "), _ROOT):
        config.addinivalue_line("markers", marker)
    if config.getoption("--kurma-host") and not in_host():
        if os.geteuid() != 0:
            raise pytest.UsageError("--kurma-host needs root")
        enter_host()


def enter_host() -> None:
    """Moves this process into mount and network namespaces of its own: only ``lo``, which is up, and an empty
    ``/run``. Must run before the process has other threads."""
    from kurma_core.linux import mounts, namespaces

    namespaces.unshare(namespaces.CLONE_NEWNS | namespaces.CLONE_NEWNET)
    mounts.make_private("/")
    namespaces.raise_lo()
    mounts.mount("tmpfs", "/run", "tmpfs", 0, "mode=0755")
    os.environ[_IN_HOST] = "1"


def in_host() -> bool:
    """Whether this process is root in such a host."""
    return os.geteuid() == 0 and bool(os.environ.get(_IN_HOST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kurma_root") is not None and not in_host():
        pytest.skip("needs root and a host of its own: run `pytest --kurma-host` as root")


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """The plugin's section of ``kurma.yml``, as the mark has it. Override it where it needs a ``tmp_path``."""
    mark = _marked(request)
    if mark is None:
        return {}
    found: Mapping[str, Any] = mark.kwargs.get("options") or (mark.args[1] if len(mark.args) > 1 else {})
    return found


@pytest.fixture
def context_parts() -> Mapping[str, Any]:
    """Fields of the driver's context besides its options: ``host_image``, ``note``. Override it to give some."""
    return {}


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """The state directory of all drivers of the test; a driver makes it when it first writes."""
    return tmp_path / "plugin/state"


@pytest.fixture
def make_driver(
    request: pytest.FixtureRequest,
    options: Mapping[str, Any],
    context_parts: Mapping[str, Any],
    state_dir: Path,
    tmp_path: Path,
) -> MakeDriver:
    """``make_driver(**OPTIONS)`` makes a driver as a new process does: each has the same state directory.

    Its arguments are options besides those of the fixture ``options``.
    """
    from kurma_core.errors import PluginSkipped

    mark = _required_mark(request)

    def make(**changes: Any) -> Any:
        try:
            section, parts = {**options, **changes}, {"state_dir": str(state_dir), **context_parts}
            return kurma_testing.load_driver(mark.args[0], tmp_path / "plugin", section, **parts)
        except PluginSkipped as error:
            if not mark.kwargs.get("skips"):
                raise
            pytest.skip(f"the plugin skips this host: {error}")

    return make


@pytest.fixture
def driver(make_driver: MakeDriver) -> Any:
    """A driver of the plugin that the mark names."""
    return make_driver()


@pytest.fixture
def declaration(request: pytest.FixtureRequest) -> Driver:
    """The declaration that the plugin's hook returns."""
    return kurma_testing.declaration_of(_required_mark(request).args[0])


def _marked(request: pytest.FixtureRequest) -> pytest.Mark | None:
    found: pytest.Mark | None = request.node.get_closest_marker("kurma_driver")
    return found


def _required_mark(request: pytest.FixtureRequest) -> pytest.Mark:
    found = _marked(request)
    if found is None:
        raise pytest.UsageError(f"{request.node.nodeid}: mark it with @pytest.mark.kurma_driver(MODULE)")
    return found
