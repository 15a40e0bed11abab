"""What ``./dev test`` leaves to ``./dev test-all``: tests marked ``full``, and repetitions under another variant.

A scenario that needs root and runs under several transports, renderers or the like runs under the first of them in
``./dev test``. The other repetitions are marked ``full`` here, so that tests need not say so one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

#: Parameters of tests and fixtures that repeat a scenario, and what they choose.
VARIANTS = {
    "disk": "the file system",
    "family": "IPv4 or IPv6",
    "form": "the form of the archive",
    "locator": "where the image comes from",
    "net": "the network",
    "number": "the signal",
    "pack": "the packing of the archive",
    "protocol": "TCP or UDP",
    "python": "the interpreter that a stager is made of",
    "renderer": "the renderer",
    "scope": "the pod or an app",
    "stager": "the stage1 image",
    "storage": "the renderer",
    "stream": "standard output, standard error or both",
    "town": "the bridge driver",
    "users": "the user namespace",
    "userns": "the user namespace",
    "which": "the stage1 image",
    "way": "the transport: in process, or by kurmad",
}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks repetitions, and what plugin authors mark ``kurma_root`` as what these tests call ``root``."""
    for item in items:
        if item.get_closest_marker("kurma_root") is not None:
            item.add_marker("root")
    for item in repetitions(items):
        item.add_marker("full")


def repetitions(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Tests that need root and differ in a variant from their function's first test. Each function keeps one."""
    first: dict[tuple[str, str], object] = {}
    found = []
    for item in items:
        chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        function = item.nodeid.partition("[")[0]
        values = [(name, value) for name, value in chosen.items() if name in VARIANTS]
        same = [first.setdefault((function, name), value) == value for name, value in values]
        if not all(same) and item.get_closest_marker("root"):
            found.append(item)
    return found
