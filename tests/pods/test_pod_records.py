"""Records of pods are parsed again only if their text has changed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kurma_core.errors import HostError, PodDamagedError, PodNotFoundError
from kurma_core.pods.record import pod_directory
from kurma_core.pods.record.pod_directory import PodDirectory
from kurma_core.pods.record.state import PodState
from tests.pods.documents import pod_document


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The directory of a pod with records."""
    found = tmp_path / "u"
    found.mkdir()
    PodDirectory(str(found)).write_pod(pod_document())
    PodDirectory(str(found)).write_state(PodState("running"))
    return str(found)


def test_an_unchanged_record_is_the_same_value(path: str) -> None:
    document, state = PodDirectory(path).read_records()
    assert document is PodDirectory(path).read_document()
    assert state is PodDirectory(path).read_state()
    assert document == pod_document()


@pytest.mark.parametrize("name", ["pod.json", "state.json"])
def test_what_was_written_is_what_another_process_reads(path: str, name: str) -> None:
    read = {"pod.json": "read_document", "state.json": "read_state"}[name]
    script = (
        "import sys\nfrom kurma_core.pods.record.pod_directory import PodDirectory\n"
        f"print(repr(PodDirectory(sys.argv[1]).{read}()))"
    )
    told = subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == repr(getattr(PodDirectory(path), read)())


def test_a_change_that_leaves_size_inode_and_times_is_seen(path: str) -> None:
    """As where two changes fall into one tick of the clock of a file system."""
    file = Path(path, "state.json")
    before = os.stat(file)
    assert PodDirectory(path).read_state().state == "running"
    with open(file, "r+b") as stream:
        text = stream.read()
        stream.seek(0)
        stream.write(text.replace(b"running", b"stopped"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (os.stat(file).st_ino, os.stat(file).st_size) == (before.st_ino, before.st_size)
    assert PodDirectory(path).read_state().state == "stopped"


def test_a_damaged_or_removed_record_is_not_answered_from_memory(path: str) -> None:
    PodDirectory(path).read_records()
    Path(path, "pod.json").write_text("{")
    with pytest.raises(PodDamagedError):
        PodDirectory(path).read_document()
    os.unlink(f"{path}/state.json")
    with pytest.raises(PodNotFoundError):
        PodDirectory(path).read_state()


def test_without_a_free_descriptor_no_record_is_damaged(path: str) -> None:
    """The pod must not look as if it could only be removed, nor its volumes as if no pod used them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(HostError, match=r"pod u: cannot read state\.json: .*Too many open files") as raised:
            PodDirectory(path).read_state()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert raised.value.hint is None
    assert PodDirectory(path).read_state().state == "running"


def test_only_so_many_are_kept(path: str) -> None:
    first = PodDirectory(path).read_state()
    for number in range(pod_directory._MOST_PARSED):
        os.makedirs(f"{path}/{number}")
        PodDirectory(f"{path}/{number}").write_state(PodState("stopped"))
    again = PodDirectory(path).read_state()
    assert again == first
    assert again is not first
