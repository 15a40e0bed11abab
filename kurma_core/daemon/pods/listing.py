"""Listings of all pods, cached: as values for kurmad's services, and as JSON for its clients.

An answer is kept while the pod's files are unchanged: other processes change pods, too, without notifying kurmad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.daemon.http.caller_rights import redacted
from kurma_core.daemon.http.exchange import Said, json_line
from kurma_core.daemon.pods.changes import Changes
from kurma_core.models.pod import PodRecord
from kurma_core.models.summary import PodSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kurma_core.pods.daemon_interface import DaemonInterface, PodDirectory, Recover

Json = Any
#: Forms of JSON answers: whole records; records without what read-only clients may not see; summaries for tables.
RECORDS, SHOWN, SUMMARIES = "records", "shown", "summaries"
#: Forms of answers that are values.
_RECORD, _SUMMARY = "record", "summary"
#: Bytes of JSON that are kept of a pod.
_MOST = 65536


class _Kept:
    """The answers for a pod. They never change, so that several threads may use them at once.

    :param count: the count of changes at the pod's last one before it was read (:class:`.changes.Changes`).
    :param directory: the pod's, if the answers hold only while the pod has an owner.
    :param at: when the pod was made; the listing is sorted by it.
    :param answers: by form.
    """

    __slots__ = ("answers", "at", "count", "directory")

    def __init__(self, count: int, directory: PodDirectory | None, at: str, answers: dict[str, Any]) -> None:
        self.count = count
        self.directory = directory
        self.at = at
        self.answers = answers

    def owned(self, here: Collection[str]) -> bool:
        """Whether the pod has an owner, if it needs one. :param here: UUIDs of the pods that this kurmad owns."""
        directory = self.directory
        return directory is None or directory.uuid in here or directory.owned()

    def size(self) -> int:
        """Bytes of JSON."""
        return sum(len(one) for one in self.answers.values() if isinstance(one, bytes))


class _Whole:
    """The answers for all pods, oldest first, in one form.

    :param count: the count of changes before any pod was read. :param generation: number of the configuration.
    :param unsettled: pods of which the answers hold only while they have owners.
    :param here: UUIDs of the pods that this kurmad owns.
    """

    __slots__ = ("_elsewhere", "_here", "answers", "count", "generation")

    def __init__(
        self, count: int, generation: int, answers: list[Any], unsettled: dict[str, _Kept], here: frozenset[str]
    ) -> None:
        self.count = count
        self.generation = generation
        self.answers = answers
        self._here = here & unsettled.keys()
        self._elsewhere = [kept for uuid, kept in unsettled.items() if uuid not in here]

    def owned(self, here: frozenset[str]) -> bool:
        """Whether each pod that needs an owner has one."""
        return self._here <= here and all(kept.owned(here) for kept in self._elsewhere)


class Listing:
    """:param owned: tells the UUIDs of the pods that this kurmad owns."""

    def __init__(self, pods: DaemonInterface, owned: Callable[[], Collection[str]] = tuple) -> None:
        self._pods = pods
        self._owned = owned
        self._changes = Changes(pods.root)
        self._generation = pods.generation
        self._kept: dict[str, _Kept] = {}
        self._whole: dict[str, _Whole] = {}

    def close(self) -> None:
        """Repeatable."""
        self._changes.close()

    def json(self, form: str) -> Said:
        """Every pod, oldest first, as a JSON array. Dead ones are taken down.

        :param form: one of :data:`RECORDS`, :data:`SHOWN` and :data:`SUMMARIES`.
        """
        return Said(b"[" + b", ".join(self._answers(form)) + b"]")

    def records(self) -> list[PodRecord]:
        """Every pod, oldest first. The record of an unchanged pod is the same object as before."""
        return list(self._answers(_RECORD))

    def summaries(self) -> list[PodSummary]:
        """A summary of every pod, oldest first."""
        return list(self._answers(_SUMMARY))

    def _answers(self, form: str) -> list[Any]:
        """The answer for each pod, oldest first."""
        generation, count, here = self._pods.generation, self._changes.look(), frozenset(self._owned())
        whole = self._whole.get(form)
        if whole is not None and (whole.generation, whole.count) == (generation, count) and whole.owned(here):
            return whole.answers
        # Answers by an earlier configuration do not count.
        before = self._kept if self._generation == generation else {}
        now: dict[str, _Kept] = {}

        def tell(directory: PodDirectory, recover: Recover | None) -> tuple[str, Any, _Kept | None]:
            # The pod is watched before it is read.
            at_change = self._changes.of(directory.uuid)
            kept = before.get(directory.uuid)
            if kept is not None and not (kept.count == at_change and kept.owned(here)):
                kept = None
            if kept is None or form not in kept.answers:
                at, answer, kept = self._read(directory, recover, form, kept, at_change)
            else:
                at, answer = kept.at, kept.answers[form]
            if kept is not None:
                now[directory.uuid] = kept
            return at, answer, kept

        def broken(directory: PodDirectory, state: str, why: str) -> tuple[str, Any, _Kept | None]:
            value = self._pods.broken(directory, state, why, summary=form in (SUMMARIES, _SUMMARY))
            return value.created_at, _answer(value, form), None

        found = sorted(self._pods.each(tell, broken), key=lambda one: one[0])
        # Drops the answers for removed pods.
        self._kept, self._generation = now, generation
        answers = [answer for _, answer, _ in found]
        kept = [one for _, _, one in found if one is not None and form in one.answers]
        if count is not None and len(kept) == len(answers):
            unsettled = {one.directory.uuid: one for one in kept if one.directory is not None}
            self._whole[form] = _Whole(count, generation, answers, unsettled, here)
        else:
            self._whole.pop(form, None)
        return answers

    def _read(
        self,
        directory: PodDirectory,
        recover: Recover | None,
        form: str,
        kept: _Kept | None,
        at_change: int | None,
    ) -> tuple[str, Any, _Kept | None]:
        """Reads a pod. :returns: when it was made, the answer, and the answers to keep.

        :param kept: answers in other forms that are still valid.
        :param at_change: the count of changes at the pod's last one.
        """
        value, lasts, unsettled = self._pods.describe(directory, recover, summary=form in (SUMMARIES, _SUMMARY))
        at, answer = value.created_at, _answer(value, form)
        if not lasts or at_change is None:
            return at, answer, kept
        found = _Kept(
            at_change,
            directory if unsettled else None,
            at,
            {**(kept.answers if kept is not None else {}), form: answer},
        )
        if found.size() > _MOST:
            return at, answer, kept
        # A pod that changed while it was read is not kept.
        self._changes.look()
        return at, answer, found if self._changes.of(directory.uuid) == at_change else None


def _answer(value: PodRecord | PodSummary, form: str) -> Any:
    if form in (_RECORD, _SUMMARY):
        return value
    said = value.to_json()
    return json_line(redacted(said) if form == SHOWN else said)[:-1]
