"""Isolators of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.appc.types import describe
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import Compiled
from kurma_core.models import IsolatorPlan

if TYPE_CHECKING:
    from kurma_core.hookspecs import IsolatorHost


def no_new_privileges(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """``true``: no program gives the app more than it has, a setuid one neither."""
    if not isinstance(value, bool):
        raise IsolatorError(f"isolator {name}: expected true or false, got {describe(value)}")
    return Compiled(IsolatorPlan(no_new_privileges=value))
