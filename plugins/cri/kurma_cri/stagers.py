"""Finds out which features the stagers of runtime handlers have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kurma_core.api.operations import Api


class Stagers:
    """:param client: knows the stagers. It is asked once: kubelet asks for features every few seconds."""

    def __init__(self, client: Api) -> None:
        self._client = client
        self._found: dict[str | None, frozenset[str]] = {}

    def features(self, name: str | None) -> frozenset[str]:
        """The features of a stager, as ``StagerFeatures`` names them; none if it is unknown.

        :param name: None: the default one; also ``rkt:IMAGE``.
        """
        return self._find(name) or frozenset()

    def is_foreign(self, name: str | None) -> bool:
        """Whether the stager is one that does not follow Kurma's own specification, such as a stage1 of rkt: it
        applies no isolators, and writes no logs of containers."""
        found = self._find(name)
        return found is not None and "volume_kinds" not in found

    def _find(self, name: str | None) -> frozenset[str] | None:
        known = self._known()
        return known.get(name) if name is None or name in known else known.get(name.partition(":")[0])

    def _known(self) -> dict[str | None, frozenset[str]]:
        if not self._found:
            found: dict[str | None, frozenset[str]] = {}
            for one in self._client.stagers():
                found[one.name] = frozenset(one.features)
                if one.default:
                    found[None] = found[one.name]
            self._found = found
        return self._found
