"""Ranges of ids for user namespaces: no two pods share one, in whatever state directory they are (H9)."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from kurma_core.appc.image import NameValue
from kurma_core.appc.pod import PodManifest, Volume
from kurma_core.config import UsernsPoolConfig, load
from kurma_core.errors import HostError, IdRangeError, ManifestError, VolumeError
from kurma_core.models.isolator import IdRange, userns_word
from kurma_core.pods.prepare.id_ranges import IdRanges, wanted
from kurma_core.pods.prepare.volumes import check_owners
from kurma_core.pods.record.pod_store import PodStore

POOL = UsernsPoolConfig(first=100_000, count=400, size=100)


class Place:
    """State directories of one host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.host = str(path / "run")
        self.subordinate = str(path / "subuid")

    def ranges(self, state: str = "state", pool: UsernsPoolConfig = POOL) -> IdRanges:
        return IdRanges(self.store(state), pool, host=self.host, subordinate=(self.subordinate, "/none"))

    def store(self, state: str = "state") -> PodStore:
        return PodStore(str(self.path / state))

    def pod(self, number: int, state: str = "state") -> str:
        uuid = f"aaaa0000-0000-4000-8000-{number:012}"
        os.makedirs(f"{self.store(state).root}/{uuid}")
        return uuid

    def remove(self, uuid: str, state: str = "state") -> None:
        shutil.rmtree(f"{self.store(state).root}/{uuid}")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("text", ["", "x", "1", "1:", ":1", "0:5", "1:0", "+1:5", "1:5:5", "1: 5", "²:5", "-1:5"])
def test_garbage_is_no_range(text: str) -> None:
    with pytest.raises(ValueError):
        userns_word(text)


def test_the_last_id_is_nobodys() -> None:
    assert IdRange.parse("4294967294:1").last == 4294967294
    for text in ("4294967295:1", "4294967294:2", "99999999999:1"):
        with pytest.raises(ValueError):
            IdRange.parse(text)


def test_the_defaults_are_beyond_what_useradd_and_nspawn_give(tmp_path: Path) -> None:
    (tmp_path / "kurma.json").write_text("{}")
    config = load(str(tmp_path / "kurma.json"))
    pool = config.userns_pool
    assert config.userns == "none"
    assert pool.size == 65536
    assert pool.first > 0x6FFFFFFF, "systemd-nspawn's; useradd's SUB_UID_MAX is 600100000"
    assert pool.first + pool.count <= 0x7FFE0000, "systemd's foreign ids"
    assert pool.count // pool.size > 4000


def test_every_pod_has_a_range_of_its_own_until_all_are_taken(place: Place) -> None:
    ranges = place.ranges()
    pods = [place.pod(number) for number in range(5)]
    given = [ranges.claim(pod, "auto") for pod in pods[:4]]
    assert sorted(ids.first for ids in given) == [100_000, 100_100, 100_200, 100_300]
    assert {ids.count for ids in given} == {100}
    with pytest.raises(IdRangeError, match=r"no range of 100 ids is free .* all 4 of the pool") as caught:
        ranges.claim(pods[4], "auto")
    assert "userns_pool" in (caught.value.hint or "")
    place.remove(pods[2])
    assert ranges.claim(pods[4], "auto") == given[2], "what a removed pod had is free"
    assert len(os.listdir(place.host)) == 5, "four claims and the lock; the removed pod's is gone"


def test_the_choice_is_by_chance(place: Place) -> None:
    pool = UsernsPoolConfig(1000, 1_000_000, 1)
    firsts = {place.ranges(pool=pool).claim(place.pod(number), "auto").first for number in range(8)}
    assert len(firsts) == 8
    assert max(firsts) - min(firsts) > 1000


def test_users_ranges_are_left_alone(place: Place) -> None:
    Path(place.subordinate).write_text("alice:100000:250\n# garbage\nbob:x:y\n\nroot:0:5\n")
    ranges = place.ranges()
    assert ranges.claim(place.pod(1), "auto").first == 100_300
    with pytest.raises(IdRangeError, match="no range"):
        ranges.claim(place.pod(2), "auto")
    assert ranges.claim(place.pod(3), "100000:100") == IdRange(100_000, 100), "who names them means them"


@pytest.mark.parametrize("text", ["100099:1", "99999:2", "100050:10", "99000:5000"])
def test_a_range_that_overlaps_another_pods_is_refused(place: Place, text: str) -> None:
    first, second = place.pod(1), place.pod(2)
    place.ranges().claim(first, "100000:100")
    with pytest.raises(
        IdRangeError, match=f"pod {second}: user namespace {text}: pod {first} has the ids 100000:100"
    ):
        place.ranges().claim(second, text)
    assert place.ranges().claim(second, "100100:1").last == 100_100


def test_another_state_directory_sees_them(place: Place) -> None:
    here, there = place.pod(1), place.pod(2, "other")
    place.ranges().claim(here, "100000:300")
    assert place.ranges("other").claim(there, "auto").first == 100_300
    with pytest.raises(IdRangeError, match=f"pod {here} has the ids 100000:300") as caught:
        place.ranges("other").claim(place.pod(3, "other"), "100299:1")
    assert str(place.path / "state") in (caught.value.hint or "")


def test_two_state_directories_may_have_a_pod_of_the_same_uuid(place: Place) -> None:
    place.ranges().claim(place.pod(1), "100000:300")
    twin = place.pod(1, "other")
    assert place.ranges("other").claim(twin, "auto").first == 100_300
    with pytest.raises(IdRangeError, match=f"pod {twin} has the ids 100000:300"):
        place.ranges("other").hold(twin, IdRange(100_200, 100))


def test_a_state_directory_by_two_paths_is_one(place: Place) -> None:
    here = place.pod(1)
    ids = place.ranges().claim(here, "auto")
    (place.path / "alias").symlink_to("state")
    place.ranges("alias").hold(here, ids)
    assert place.ranges("alias").claim(here, str(ids)) == ids


def test_what_pods_of_a_state_directory_had_that_is_gone_is_free(place: Place) -> None:
    """Never cleaned, deleted by hand: the next claim of anybody takes it back."""
    for number in range(4):
        place.ranges("gone").claim(place.pod(number, "gone"), "auto")
    with pytest.raises(IdRangeError, match="no range"):
        place.ranges().claim(place.pod(5), "auto")
    shutil.rmtree(place.path / "gone")
    ids = place.ranges().claim(place.pod(6), "auto")
    assert sorted(os.listdir(place.host)) == [".lock", str(ids)]


def test_a_pod_that_cannot_be_looked_at_keeps_its_ids(place: Place) -> None:
    ids = place.ranges().claim(place.pod(1), "auto")
    knot = place.path / "knot"
    knot.symlink_to("knot")
    link = f"{place.host}/100100:100" if ids.first != 100_100 else f"{place.host}/100200:100"
    os.symlink(f"{knot}/pods/x", link)
    with pytest.raises(IdRangeError, match="pod x has the ids"):
        place.ranges().claim(place.pod(2), os.path.basename(link))


def test_two_hundred_claims(place: Place) -> None:
    """With the usual pool, beside others' claims, and each quick."""
    pool = UsernsPoolConfig(first=2_000_000, count=200 * 65536, size=65536)
    given = [
        place.ranges(f"state{number % 2}", pool).claim(place.pod(number, f"state{number % 2}"), "auto")
        for number in range(200)
    ]
    assert len({ids.first for ids in given}) == 200
    with pytest.raises(IdRangeError, match="all 200 of the pool"):
        place.ranges("state0", pool).claim(place.pod(200, "state0"), "auto")


def test_after_a_reboot_the_state_directory_knows_its_own_and_a_start_tells_the_others(place: Place) -> None:
    here = place.pod(1)
    ids = place.ranges().claim(here, "100000:300")
    shutil.rmtree(place.host)
    assert place.ranges().claim(place.pod(2), "auto").first == 100_300
    place.ranges().hold(here, ids)
    with pytest.raises(IdRangeError, match=here):
        place.ranges("other").claim(place.pod(3, "other"), "100000:1")
    place.ranges().hold(here, ids)


def test_a_start_is_refused_when_another_state_directory_was_faster(place: Place) -> None:
    here, there = place.pod(1), place.pod(2, "other")
    ids = place.ranges().claim(here, "100000:100")
    shutil.rmtree(place.host)
    place.ranges("other").claim(there, "100000:100")
    with pytest.raises(IdRangeError, match=f"pod {there} has the ids 100000:100"):
        place.ranges().hold(here, ids)


def _claim(path: Path, number: int) -> tuple[int, int]:
    place = Place(path)
    ids = place.ranges(f"state-{number % 2}", UsernsPoolConfig(1, 16 * 7, 7)).claim(
        place.pod(number, f"state-{number % 2}"), "auto"
    )
    return ids.first, ids.last


def test_many_at_once_never_meet(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as workers:
        given = sorted(workers.starmap(_claim, [(tmp_path, number) for number in range(16)]))
    assert all(one[1] < other[0] for one, other in itertools.pairwise(given))
    assert len(given) == 16


def test_what_cannot_be_recorded_is_told(place: Place) -> None:
    Path(place.host).write_text("a file in its way")
    with pytest.raises(HostError, match=r"cannot record the pod's range of ids: .*/run: File exists"):
        place.ranges().claim(place.pod(1), "auto")


def test_option_annotation_and_default() -> None:
    def pod(value: str) -> PodManifest:
        return PodManifest(apps=(), annotations=(NameValue("a", "b"), NameValue("kurma.io/userns", value)))

    assert wanted("none", pod("auto"), "auto") == "none"
    assert wanted(None, pod("5:6"), "auto") == "5:6"
    assert wanted(None, PodManifest(apps=()), "auto") == "auto"
    with pytest.raises(ManifestError, match=r"kurma.io/userns: expected none, auto, or UID:COUNT.*'host'"):
        wanted(None, pod("host"), "none")


def test_an_empty_volumes_owner_must_be_in_it() -> None:
    manifest = PodManifest(apps=(), volumes=(Volume("e", "empty", uid=99, gid=100),))
    check_owners(manifest, IdRange(1, 101))
    with pytest.raises(VolumeError, match=r"volume e: its owner 99:100 is outside .* the IDs 0 to 99"):
        check_owners(manifest, IdRange(1, 100))


def test_pods_of_a_manager_may_share_ids_with_one_another(place: Place) -> None:
    """And with no other pod: the claim of each lasts as long as that pod."""
    ranges = place.ranges()
    one, two, other = place.pod(1), place.pod(2), place.pod(3)
    assert str(ranges.claim(one, "1000:100", managed=True)) == "1000:100"
    assert str(ranges.claim(two, "1050:100", managed=True)) == "1050:100"
    ranges.hold(one, IdRange(1000, 100), managed=True)
    with pytest.raises(IdRangeError, match=f"pod {other}: user namespace 1000:10: pod {one} has the ids"):
        ranges.claim(other, "1000:10")
    place.remove(one)
    assert str(ranges.claim(other, "1000:10")) == "1000:10"
    with pytest.raises(IdRangeError, match=f"pod {other} has the ids 1000:10"):
        ranges.claim(place.pod(4), "1000:100", managed=True)
    with pytest.raises(IdRangeError, match=f"pod {two} has the ids"):
        place.ranges("state2").claim(place.pod(5, "state2"), "1149:1")
    assert not ranges.claim(place.pod(6), "auto").overlaps(IdRange(1000, 150))
