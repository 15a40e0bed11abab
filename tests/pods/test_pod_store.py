"""Pods on disk: names, prefixes, locks, damage."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kurma_core.appc.image import ImageManifest, NameValue
from kurma_core.appc.pod import PodApp, PodManifest, RuntimeImage
from kurma_core.errors import (
    AmbiguousReferenceError,
    FormatVersionError,
    HostError,
    PodDamagedError,
    PodExistsError,
    PodNotFoundError,
)
from kurma_core.models.network import Attachment, NetworkRequest, PortMapping
from kurma_core.pods.prepare.prepare_pod import image_name
from kurma_core.pods.record.pod_directory import PodDirectory
from kurma_core.pods.record.pod_store import PodStore, summary
from kurma_core.pods.record.state import PodState, RestartRecord
from tests.pods.documents import pod_document

A = "aaaa0000-0000-4000-8000-000000000001"
B = "aaaabbbb-0000-4000-8000-000000000002"


@pytest.fixture
def store(tmp_path: Path) -> PodStore:
    return PodStore(str(tmp_path))


def test_an_existing_uuid_is_refused(store: PodStore) -> None:
    """G11"""
    store.create(A, "one")
    with pytest.raises(PodExistsError, match="a pod with this UUID exists"):
        store.create(A, "two")
    # The refusal must not have reserved the name.
    store.create(B, "two")


def test_a_taken_name_is_refused_and_leaves_nothing(store: PodStore) -> None:
    store.create(A, "one")
    with pytest.raises(PodExistsError, match=f"pod {A} has that name"):
        store.create(B, "one")
    assert store.uuids() == [A]


def test_a_name_that_cannot_be_reserved_is_told_with_its_path(store: PodStore) -> None:
    """As where no inode is free; and nothing is left."""
    with pytest.raises(HostError, match=rf"^cannot make {store.names}/x+: File name too long$") as caught:
        store.create(A, "x" * 300)
    assert caught.value.data["errno"] == errno.ENAMETOOLONG
    assert store.uuids() == []


def test_a_name_whose_pod_is_gone_is_free_again(store: PodStore) -> None:
    pod, _ = store.create(A, "one")
    shutil.rmtree(pod.path)  # as a process would leave it that died before it freed the name
    assert store.create(B, "one")[0].uuid == B


def test_found_by_uuid_prefix_and_name(store: PodStore) -> None:
    store.create(A, "one")
    store.create(B, "two")
    assert store.find(A).uuid == A
    assert store.find(A.upper()).uuid == A
    assert store.find("aaaab").uuid == B
    assert store.find("two").uuid == B
    with pytest.raises(AmbiguousReferenceError, match="2 pods match"):
        store.find("aaaa")


@pytest.mark.parametrize(
    ("reference", "hint"), [("aaa", "kurma list; a UUID needs at least 4 characters"), ("x", "kurma list$")]
)
def test_too_little_of_a_uuid_is_told(store: PodStore, reference: str, hint: str) -> None:
    store.create(A, "one")
    with pytest.raises(PodNotFoundError) as caught:
        store.find(reference)
    assert re.search(hint, caught.value.hint or "")


@pytest.mark.parametrize(
    "reference", ["", ".", "..", "names", "../pods", "aaa", "nothing", "a/b", "a\0b", "a" * 300, "\udcff"]
)
def test_no_such_pod(store: PodStore, reference: str) -> None:
    store.create(A, "one")
    with pytest.raises(PodNotFoundError):
        store.find(reference)


def test_state_is_replaced_whole_and_read_back(store: PodStore) -> None:
    pod, _ = store.create(A, "one")
    pod.write_state(PodState("prepared"))
    assert pod.change_state(state="running", owner=1).owner == 1
    assert pod.read_state() == PodState("running", owner=1)
    assert sorted(os.listdir(pod.path)) == ["op.lock", "owner.lock", "state.json"]


def test_damage_is_told_with_what_to_do(store: PodStore) -> None:
    pod, _ = store.create(A, "one")
    Path(pod.file("state.json")).write_text("{")
    with pytest.raises(PodDamagedError, match=r"state\.json is damaged") as caught:
        pod.read_state()
    assert caught.value.hint == f"kurma rm {A}"


def test_a_newer_format_is_refused(store: PodStore) -> None:
    pod, _ = store.create(A, "one")
    Path(pod.file("state.json")).write_text('{"version": 99}')
    with pytest.raises(FormatVersionError, match="newer version"):
        pod.read_state()


def test_a_pod_is_never_seen_without_its_owner(store: PodStore) -> None:
    pod, lock = store.create(A, "one")
    assert pod.owned()
    assert pod.try_own() is None
    os.close(lock)
    assert not pod.owned()


def test_looking_for_an_owner_is_in_nobodys_way(store: PodStore) -> None:
    """To see whether a pod is owned takes no lock, not for a moment."""
    pod, lock = store.create(A, "one")
    os.close(lock)
    script = (
        "import sys; from kurma_core.pods.record.pod_directory import PodDirectory\n"
        "pod = PodDirectory(sys.argv[1]); print(flush=True)\n"
        "while True: pod.owned()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, pod.path],
        stdout=subprocess.PIPE,
    ) as looker:
        assert looker.stdout is not None
        looker.stdout.readline()
        for _ in range(2000):
            lock_again = pod.try_own()
            assert lock_again is not None
            os.close(lock_again)
        looker.kill()


def test_a_state_is_changed_only_where_it_holds(store: PodStore) -> None:
    pod, _ = store.create(A, "one")
    pod.write_state(PodState("stopped"))
    assert pod.change_state(only_in=("running",), state="stopping").state == "stopped"
    assert pod.read_state().state == "stopped"


def test_what_dead_processes_left_half_done_is_swept_and_what_lives_is_not(store: PodStore) -> None:
    _, lock = store.create(A, "one")
    os.close(lock)
    dead, alive = f"{store.root}/.half-{B}.1", f"{store.root}/.half-{B}.2"
    os.makedirs(f"{dead}/pod/deep")
    os.mkdir(alive)
    held = PodDirectory(alive).try_own()
    assert held is not None
    assert store.uuids() == [A]
    store.sweep(60)
    assert len(os.listdir(store.root)) == 4, "too young"
    store.sweep(0)
    assert sorted(os.listdir(store.root)) == [os.path.basename(alive), A, "names"]
    os.close(held)
    store.sweep(0)
    assert sorted(os.listdir(store.root)) == [A, "names"]


def test_names_of_pods_that_are_gone_are_swept(store: PodStore) -> None:
    """Who removed such a pod was killed before it freed the name."""
    pod, lock = store.create(A, "one")
    store.create(B, "two")
    os.rename(pod.path, f"{store.root}/.half-{A}.1")
    store.sweep(60)
    assert sorted(os.listdir(store.names)) == ["one", "two"]
    store.sweep(0)
    assert os.listdir(store.names) == ["two"]
    os.close(lock)


def test_the_owner_lock_is_one_processs_and_dies_with_it(store: PodStore) -> None:
    pod, lock = store.create(A, "one")
    os.close(lock)
    script = (
        "import sys; from kurma_core.pods.record.pod_directory import PodDirectory\n"
        "fd = PodDirectory(sys.argv[1]).try_own(); print('held' if fd is not None else 'busy', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, pod.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert pod.owned()
        assert pod.try_own() is None
        holder.kill()
    assert not pod.owned()


def test_delete_frees_the_name_and_is_repeatable(store: PodStore) -> None:
    pod, _ = store.create(A, "one")
    deep = Path(pod.path, "pod", *["d"] * 50)
    deep.mkdir(parents=True)
    os.symlink("/etc", deep / "link")
    store.delete(pod, "one")
    store.delete(pod, "one")
    assert store.uuids() == []
    assert os.listdir(store.names) == []
    assert os.path.exists("/etc/passwd")


def test_a_summary_has_what_a_table_shows(store: PodStore) -> None:
    """From pod.json and state.json alone (19.3)."""
    manifest = PodManifest((), user_labels={"tier": "front"})
    document = pod_document(manifest=manifest, image_names={"web": "docker://web:1"})
    ports = (PortMapping(8080, 80), PortMapping(53, 53, "udp", "::1"))
    joined = Attachment("default", "bridge", "eth0", {}, NetworkRequest("default"), ports=ports)
    state = PodState("stopped", exit_code=3, attachments=(joined,), restart=RestartRecord(count=2))
    found = summary(store.directory(document.uuid), document, state)
    assert found.ports == ("8080:80/tcp", "[::1]:53:53/udp")
    assert (found.exit_code, found.restarts, dict(found.labels)) == (3, 2, {"tier": "front"})
    assert found.image_names == {"web": "docker://web:1"}
    assert summary(store.directory(document.uuid), document, PodState("prepared")).restarts == 0


def test_images_are_named_as_the_caller_typed_them() -> None:
    """Without passwords; an ID by the image's own name (19.3)."""
    manifest = ImageManifest("example.com/web", labels=(NameValue("version", "1.0"),))

    def named(text: str) -> str:
        return image_name(PodApp("web", RuntimeImage(None, locator=text)), manifest)

    assert named("docker://web:1") == "docker://web:1"
    assert named("https://me:secret@example.com/web.aci") == "https://example.com/web.aci"
    assert named("sha512-" + "ab" * 64) == named("abcdef12") == "example.com/web:1.0"
