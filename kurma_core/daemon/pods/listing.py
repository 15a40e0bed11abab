"""Answers about all pods at once. What is told of a pod is kept as the JSON that it was told in, for as long as
what it was made of is as it was: other processes change pods as well, and tell nobody."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kurma_core.daemon.access import shown
from kurma_core.daemon.http.exchange import Said, json_line
from kurma_core.models.pod import PodRecord
from kurma_core.models.summary import PodSummary
from kurma_core.pods.listing import LIVE, broken_summary, each, records, summary, unsettled
from kurma_core.pods.proof import Proof

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.pod_store import PodDirectory
    from kurma_core.pods.listing import Recover
    from kurma_core.pods.manager import PodManager

Json = Any
#: What may be told: all of each pod; that, to those who may only look; what a table shows.
RECORDS, SHOWN, SUMMARIES = "records", "shown", "summaries"
#: Bytes that are kept of a pod.
_MOST = 65536


class _Kept:
    """What was told of a pod. It is never changed: several threads may answer at once.

    :param unsettled: it was true of a pod that was owned, and is for as long as it is.
    :param at: when the pod was made, by which pods are ordered.
    :param texts: by what was told.
    """

    __slots__ = ("at", "proof", "texts", "unsettled")

    def __init__(self, proof: Proof, unsettled: bool, at: str, texts: dict[str, bytes]) -> None:
        self.proof = proof
        self.unsettled = unsettled
        self.at = at
        self.texts = texts

    def holds(self, directory: PodDirectory) -> bool:
        return self.proof.holds(directory) and (not self.unsettled or directory.owned())


class Listing:
    """:param manager: asked for the pod manager each time: there is another one after a reload."""

    def __init__(self, manager: Callable[[], PodManager]) -> None:
        self._manager = manager
        self._of: PodManager | None = None
        self._kept: dict[str, _Kept] = {}

    def json(self, form: str) -> Said:
        """Every pod, oldest first, as a list. Dead ones are taken down on the way.

        :param form: one of :data:`RECORDS`, :data:`SHOWN` and :data:`SUMMARIES`.
        """
        return Said(b"[" + b", ".join(self._texts(form)) + b"]")

    def records(self) -> list[PodRecord]:
        """Every pod likewise, as a value."""
        return [PodRecord.from_json(json.loads(text)) for text in self._texts(RECORDS)]

    def _texts(self, form: str) -> list[bytes]:
        manager = self._manager()
        # What another one told, by another configuration, is not asked for any more.
        before = self._kept if self._of is manager else {}
        now: dict[str, _Kept] = {}

        def tell(directory: PodDirectory, recover: Recover | None) -> tuple[str, bytes]:
            kept = before.get(directory.uuid)
            if kept is not None and not kept.holds(directory):
                kept = None
            if kept is None or form not in kept.texts:
                at, text, kept = _told(manager, directory, recover, form, kept)
            else:
                at, text = kept.at, kept.texts[form]
            if kept is not None:
                now[directory.uuid] = kept
            return at, text

        def broken(directory: PodDirectory, state: str, why: str) -> tuple[str, bytes]:
            how = broken_summary if form == SUMMARIES else manager.broken
            return _text(how(directory, state, why), form)

        found = sorted(each(manager.store, manager.recover, tell, broken), key=lambda one: one[0])
        # Of pods that are gone nothing is kept.
        self._kept, self._of = now, manager
        return [text for _, text in found]


def _told(
    manager: PodManager, directory: PodDirectory, recover: Recover | None, form: str, kept: _Kept | None
) -> tuple[str, bytes, _Kept | None]:
    """What is to be told of a pod, and what of that is to be kept.

    :param kept: what was told of it in other forms, and still is true.
    """
    proof = Proof.take(directory) if kept is None else kept.proof
    document, state = records(directory, recover)
    value: PodRecord | PodSummary
    if form == SUMMARIES:
        value, lasts = summary(directory, document, state), True
    else:
        value = manager.record(directory, document, state)
        # Its owner is told where there is one: who died, or came, as it was looked at is not kept.
        owned = state["state"] not in LIVE or value.owner == state.get("owner")
        lasts = owned and manager.told_by_files(directory, document, state)
    at, text = _text(value, form)
    if proof is None or not lasts:
        return at, text, kept
    texts = {form: text} if kept is None else {**kept.texts, form: text}
    if sum(map(len, texts.values())) > _MOST:
        return at, text, kept
    return at, text, _Kept(proof, unsettled(state), at, texts)


def _text(value: PodRecord | PodSummary, form: str) -> tuple[str, bytes]:
    said = value.to_json()
    return value.created_at, json_line(shown(said) if form == SHOWN else said)[:-1]


__all__ = ["RECORDS", "SHOWN", "SUMMARIES", "Listing"]
