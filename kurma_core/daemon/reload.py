"""A configuration that has changed while the daemon runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.config import Config

#: What holds from the daemon's start to its end.
FIXED = ("state_dir", "run_dir")


def changed(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Keys of ``kurma.yml`` whose values are others: those that take effect, and those that do not."""
    keys = [key for key in new.values if new.values[key] != old.values.get(key)]
    return [key for key in keys if key not in FIXED], [key for key in keys if key in FIXED]


def with_fixed(old: Config, new: Config) -> Config:
    """The new one, where it may be."""
    values = {**new.values, **{key: old.values[key] for key in FIXED}}
    return replace(new, values=values, state_dir=old.state_dir, run_dir=old.run_dir)


__all__ = ["FIXED", "changed", "with_fixed"]
