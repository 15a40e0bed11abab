"""Finds and loads the entry points of plugins; knows nothing of what they are for.

stevedore does the loading. It is fed from :mod:`importlib.metadata` instead of its own look-up, which keeps a
cache under the user's cache directory (nothing that a root process should trust), can miss a reinstallation within
one second, and loses the distribution. Both are imported when the first plugin is looked for, not before.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.metadata import Distribution, EntryPoint

_PREFIX = "kurma."


def find() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Every entry point of a ``kurma.…`` group on ``sys.path``, by group; nothing is imported.

    A distribution that stands on the path twice counts once, where it comes first: that is the one that Python
    imports.
    """
    groups: dict[str, list[EntryPoint]] = {}
    for distribution in _distributions():
        for entry in distribution.entry_points:
            if entry.group.startswith(_PREFIX):
                groups.setdefault(entry.group, []).append(entry)
    return {group: tuple(sorted(entries, key=lambda entry: entry.name)) for group, entries in groups.items()}


def _distributions() -> Iterator[Distribution]:
    from importlib.metadata import distributions

    having = [d for d in distributions() if _PREFIX in (d.read_text("entry_points.txt") or "")]
    if len({str(d.locate_file("")) for d in having}) < 2:
        yield from having  # one directory holds each once; no need to parse their metadata for their names
        return
    seen: set[str] = set()
    for distribution in having:
        name = distribution_name(distribution).lower().replace("_", "-").replace(".", "-")
        if name not in seen:
            seen.add(name)
            yield distribution


def distribution_name(distribution: Distribution | None) -> str:
    """Its name as its author writes it; something to show where it has none."""
    name = distribution.metadata["Name"] if distribution is not None else None
    return str(name) if name else "an unnamed distribution"


def described(entry: EntryPoint) -> str:
    """``NAME VERSION`` of the distribution that brings the entry point."""
    dist = entry.dist
    return f"{distribution_name(dist)} {dist.version}" if dist is not None else distribution_name(None)


def load(entry: EntryPoint) -> object:
    """Imports what the entry point names.

    :raises Exception: whatever the import raised, unchanged.
    """
    from stevedore.driver import DriverManager

    class Fed(DriverManager[object]):
        """Sees this one entry point, so that nothing else is even considered."""

        def list_entry_points(self) -> list[EntryPoint]:
            return [entry]

    def fail(manager: object, entry_point: EntryPoint, error: BaseException) -> None:
        raise error

    manager = Fed(entry.group, entry.name, on_load_failure_callback=fail, on_missing_entrypoints_callback=None)
    return manager.driver
