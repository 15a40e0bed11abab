"""One target under libFuzzer, in a process of its own: ``python -m tests.fuzz.one TARGET [OPTION…]``."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import atheris

_OURS = [
    *("kurma_core", "kurma_cri", "kurma_fetch_http", "kurma_fetch_docker", "kurma_render_overlay"),
    "kurma_render_copy",
]

with atheris.instrument_imports(include=_OURS):
    # What is imported only when it is needed is to be instrumented as well.
    for package in ("kurma_core.image_store", "kurma_core.appc", "kurma_core.linux"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    from tests.fuzz.targets import HIDDEN, TARGETS


def main() -> None:
    name = sys.argv.pop(1)
    target = {**TARGETS, **HIDDEN}[name][0]
    # The one with a mistake is our own code, and not of the packages above.
    atheris.Setup(sys.argv, atheris.instrument_func(target) if name in HIDDEN else target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
