"""Listings of all pods as JSON, cached for each pod.

An answer is kept while the pod's files are unchanged: other processes change pods, too, without notifying kurmad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.daemon.http.caller_rights import redacted
from kurma_core.daemon.http.exchange import Said, json_line
from kurma_core.formats.small_json import decode
from kurma_core.models.pod import PodRecord
from kurma_core.models.summary import PodSummary

if TYPE_CHECKING:
    from kurma_core.pods.daemon_interface import DaemonInterface, PodDirectory, Proof, Recover

Json = Any
#: Forms of answers: whole records; records without what read-only clients may not see; summaries for tables.
RECORDS, SHOWN, SUMMARIES = "records", "shown", "summaries"
#: Bytes that are kept of a pod.
_MOST = 65536


class _Kept:
    """The answers for a pod. Several threads may use it at once: only :attr:`record` is ever set, and always to
    the same value.

    :param unsettled: they hold only while the pod has an owner.
    :param at: when the pod was made; the listing is sorted by it.
    :param texts: JSON by form.
    :ivar record: the text of :data:`RECORDS` as a value, once a caller in this process wanted it.
    """

    __slots__ = ("at", "proof", "record", "texts", "unsettled")

    def __init__(self, proof: Proof, unsettled: bool, at: str, texts: dict[str, bytes]) -> None:
        self.proof = proof
        self.unsettled = unsettled
        self.at = at
        self.texts = texts
        self.record: PodRecord | None = None

    def holds(self, directory: PodDirectory) -> bool:
        return self.proof.holds(directory) and (not self.unsettled or directory.owned())


class Listing:
    def __init__(self, pods: DaemonInterface) -> None:
        self._pods = pods
        self._generation = pods.generation
        self._kept: dict[str, _Kept] = {}

    def json(self, form: str) -> Said:
        """Every pod, oldest first, as a JSON array. Dead ones are taken down.

        :param form: one of :data:`RECORDS`, :data:`SHOWN` and :data:`SUMMARIES`.
        """
        return Said(b"[" + b", ".join(text for text, _ in self._answers(form)) + b"]")

    def records(self) -> list[PodRecord]:
        """Every pod, oldest first. The record of an unchanged pod is the same object as before."""
        found = []
        for text, kept in self._answers(RECORDS):
            record = None if kept is None else kept.record
            if record is None:
                record = PodRecord.from_json(decode(text))
                if kept is not None:
                    kept.record = record
            found.append(record)
        return found

    def summaries(self) -> list[PodSummary]:
        """A summary of every pod, oldest first."""
        return [PodSummary.from_json(decode(text)) for text, _ in self._answers(SUMMARIES)]

    def _answers(self, form: str) -> list[tuple[bytes, _Kept | None]]:
        """The text of each pod, oldest first, and what is kept of it."""
        generation = self._pods.generation
        # Answers by an earlier configuration do not count.
        before = self._kept if self._generation == generation else {}
        now: dict[str, _Kept] = {}

        def tell(directory: PodDirectory, recover: Recover | None) -> tuple[str, bytes, _Kept | None]:
            kept = before.get(directory.uuid)
            if kept is not None and not kept.holds(directory):
                kept = None
            if kept is None or form not in kept.texts:
                at, text, kept = self._read(directory, recover, form, kept)
            else:
                at, text = kept.at, kept.texts[form]
            if kept is not None:
                now[directory.uuid] = kept
            return at, text, kept

        def broken(directory: PodDirectory, state: str, why: str) -> tuple[str, bytes, _Kept | None]:
            return (*_text(self._pods.broken(directory, state, why, summary=form == SUMMARIES), form), None)

        found = sorted(self._pods.each(tell, broken), key=lambda one: one[0])
        # Drops the answers for removed pods.
        self._kept, self._generation = now, generation
        return [(text, kept) for _, text, kept in found]

    def _read(
        self, directory: PodDirectory, recover: Recover | None, form: str, kept: _Kept | None
    ) -> tuple[str, bytes, _Kept | None]:
        """Reads a pod. :returns: when it was made, the answer, and the answers to keep.

        :param kept: answers in other forms that are still valid.
        """
        proof = self._pods.proof(directory) if kept is None else kept.proof
        value, lasts, unsettled = self._pods.describe(directory, recover, summary=form == SUMMARIES)
        at, text = _text(value, form)
        texts = {**(kept.texts if kept is not None else {}), form: text}
        if proof is None or not lasts or sum(map(len, texts.values())) > _MOST:
            return at, text, kept
        return at, text, _Kept(proof, unsettled, at, texts)


def _text(value: PodRecord | PodSummary, form: str) -> tuple[str, bytes]:
    said = value.to_json()
    return value.created_at, json_line(redacted(said) if form == SHOWN else said)[:-1]
