"""What the daemon keeps of its answers about all pods: it is what a fresh look says, whoever changes pods behind
its back; it costs no reading; and there is no more of it than there are pods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kurma_core.appc.pod import PodManifest
from kurma_core.client import Settings, connect, in_process
from kurma_core.daemon.http.caller_rights import redacted
from kurma_core.daemon.http.exchange import Said, json_line
from kurma_core.daemon.pods.listing import _MOST, RECORDS, SHOWN, SUMMARIES, Listing
from kurma_core.models.network import Attachment, NetworkRequest
from kurma_core.pods.daemon_interface import DaemonInterface
from kurma_core.pods.record.pod_directory import PodDirectory
from kurma_core.pods.record.state import PodState
from tests.pods.documents import pod_document

ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
MANIFEST = PodManifest.parse(
    {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "apps": [{"name": "web", "image": {"id": "sha512-" + "ab" * 64}}],
        "annotations": [{"name": "secret", "value": "geheim"}],
    }
)


class Place:
    """A state directory with pods that were written by hand."""

    def __init__(self, directory: Path) -> None:
        (directory / "kurma.json").write_text("{}")
        self.state = str(directory / "state")
        os.mkdir(self.state, 0o700)
        self.settings = Settings(str(directory / "kurma.json"), self.state, host="local", note=lambda text: None)
        self.client = connect(self.settings)
        self.store = self.client.here.pods.store
        self.pods = DaemonInterface(self.client.here.pods)
        self.listing = Listing(self.pods)
        self.reads: list[str] = []

    def pod(self, uuid: str, name: str, **said: Any) -> PodDirectory:
        directory, lock = self.store.create(uuid, name)
        lo = Attachment("lo", "lo", "lo", {"key": "geheim"}, NetworkRequest("lo"))
        document = {"uuid": uuid, "name": name, "created_at": f"2024-05-31T12:00:00.{name}Z", "manifest": MANIFEST}
        directory.write_pod(pod_document(**{"attachments": (lo,), **document, **said}))
        directory.write_state(PodState("stopped", apps={"web": {"exited": True, "exitCode": 7}}))
        os.close(lock)
        return directory

    def settle(self) -> None:
        """All is told once."""
        for form in (RECORDS, SHOWN, SUMMARIES):
            self.listing.json(form)
        self.reads.clear()

    def check(self) -> None:
        """What is told is what a fresh look at all of them says, in the same bytes as without anything kept."""
        told = {form: self.listing.json(form) for form in (RECORDS, SHOWN, SUMMARIES)}
        records = [record.to_json() for record in self.client.here.pods.finder.pods()]
        summaries = [one.to_json() for one in self.client.here.pods.finder.summaries()]
        assert told == {
            RECORDS: json_line(records)[:-1],
            SHOWN: json_line(redacted(records))[:-1],
            SUMMARIES: json_line(summaries)[:-1],
        }
        assert [one.to_json() for one in self.listing.records()] == records

    def told(self) -> list[tuple[str, str]]:
        return [(one["name"], one["state"]) for one in json.loads(self.listing.json(SUMMARIES))]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path)
    read = PodDirectory._text

    def noted(self: PodDirectory, name: str) -> bytes:
        made.reads.append(f"{self.uuid}/{name}")
        return read(self, name)

    monkeypatch.setattr(PodDirectory, "_text", noted)
    yield made
    made.client.close()


def elsewhere(place: Place, script: str) -> None:
    """Another process on the same state directory."""
    head = f"from kurma_core.pods.record.pod_store import PodStore\nstore = PodStore({place.state!r})\n"
    subprocess.run([sys.executable, "-c", head + script], check=True, timeout=30)


def test_an_answer_that_is_kept_is_read_from_nothing(place: Place) -> None:
    place.pod(TWO, "2")
    place.pod(ONE, "1")
    place.check()  # of files that have just been written
    place.settle()
    assert [one["name"] for one in json.loads(place.listing.json(RECORDS))] == ["1", "2"]
    assert place.told() == [("1", "stopped"), ("2", "stopped")]
    first, again = place.listing.records(), place.listing.records()
    assert all(one is two for one, two in zip(first, again, strict=True))
    assert place.reads == []
    place.check()
    assert b"geheim" in place.listing.json(RECORDS)
    assert b"geheim" not in place.listing.json(SHOWN) + place.listing.json(SUMMARIES)


def test_what_another_process_does_is_seen_at_once(place: Place) -> None:
    place.pod(ONE, "1")
    place.pod(TWO, "2")
    place.settle()
    elsewhere(place, f"store.directory({ONE!r}).change_state(state='errored', reason='so')")
    assert place.told() == [("1", "errored"), ("2", "stopped")]
    assert [one["reason"] for one in json.loads(place.listing.json(RECORDS))] == ["so", None]
    assert not any(TWO in read for read in place.reads)
    place.check()
    place.settle()
    elsewhere(place, f"store.delete(store.directory({TWO!r}), '2')")
    assert place.told() == [("1", "errored")]
    place.check()
    place.settle()
    (Path(place.store.root) / ONE / "pod.json").write_text('{"version": 1}')
    assert place.told() == [("-", "errored")]
    place.check()


def test_a_pod_made_anew_under_the_same_uuid(place: Place) -> None:
    directory = place.pod(ONE, "1")
    place.settle()
    place.store.delete(directory, "1")
    place.pod(ONE, "other")
    assert place.told() == [("other", "stopped")]
    place.check()


HOLDER = """
import os, sys, time
pod, lock = store.create(sys.argv[1], "held")
os.makedirs(pod.file("pod"))
open(pod.file("pod.json"), "w").write(sys.argv[2])
from kurma_core.pods.record.state import PodState
pod.write_state(PodState("preparing"))
print(flush=True)
time.sleep(1000)
"""


def test_an_owner_that_is_killed_is_missed_at_once(place: Place) -> None:
    """No file changes by that: what was half-made is undone as if nothing had been kept."""
    document = {"version": 1, **pod_document(uuid=ONE, name="held", manifest=MANIFEST).to_json()}
    head = f"from kurma_core.pods.record.pod_store import PodStore\nstore = PodStore({place.state!r})\n"
    command = [sys.executable, "-c", head + HOLDER, ONE, json.dumps(document)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        place.pod(TWO, "2")
        place.settle()
        assert place.told() == [("2", "stopped"), ("held", "preparing")]
        assert place.reads == []
        place.check()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert place.told() == [("2", "stopped")]
    place.check()
    assert not os.path.exists(f"{place.store.root}/{ONE}")


def test_nothing_is_kept_of_pods_that_are_gone(place: Place) -> None:
    directory = place.pod(ONE, "1")
    place.pod(TWO, "2")
    place.settle()
    assert set(place.listing._kept) == {ONE, TWO}
    place.store.delete(directory, "1")
    place.listing.json(SUMMARIES)
    assert set(place.listing._kept) == {TWO}
    assert set(place.listing._kept[TWO].answers) == {RECORDS, SHOWN, SUMMARIES}


def test_an_answer_that_is_very_long_is_not_kept(place: Place) -> None:
    place.pod(ONE, "1", notes=("x" * _MOST,))
    place.pod(TWO, "2")
    place.settle()
    place.check()
    assert set(place.listing._kept[ONE].answers) == {SUMMARIES, "record"}
    place.reads.clear()
    place.listing.json(RECORDS)
    assert {read.partition("/")[0] for read in place.reads} == {ONE}


def test_after_a_reload_nothing_is_believed_that_was_told_before(place: Place) -> None:
    place.pod(ONE, "1")
    place.settle()
    before = place.client
    assert not before.remote
    place.client = in_process(before.here.successor(before.config))
    place.pods.use(place.client.here.pods)
    place.listing.json(RECORDS)
    assert place.reads
    place.check()
    before.close()


def test_json_that_is_said_already_is_said_as_it_is() -> None:
    said = Said(b'[{"a": "\xc3\xa4"}, {}]')
    assert json_line(said) == said + b"\n"
    assert json_line({"is": "result", "value": said}) == b'{"is": "result", "value": ' + said + b"}\n"
    assert json_line({"is": "result", "value": [1]}) == b'{"is": "result", "value": [1]}\n'
