"""The parent of a pod's cgroup: a path, or a systemd slice, and nothing that leads elsewhere (C6)."""

import pytest

from kurma_core.errors import ManifestError
from kurma_core.linux.cgroups import CgroupTree, Layout
from kurma_core.pods.record.cgroup_parent import expanded, parent_of
from kurma_core.pods.record.document import cgroup_of

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/kubepods/burstable/pod-1", "kubepods/burstable/pod-1"),
        ("/kubepods/", "kubepods"),
        ("/", ""),
        ("-.slice", ""),
        ("a.slice", "a.slice"),
        (
            "kubepods-burstable-pod0_1.slice",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0_1.slice",
        ),
        ("/a-b.slice", "a-b.slice"),
        ("/a.slice/x", "a.slice/x"),
    ],
)
def test_a_parent_is_a_path_or_a_slice(text, path):
    assert expanded(text) == path


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a/b", "a-b.slice/x", ".slice", "--.slice", "-a.slice", "a-.slice", "a--b.slice"),
        *("//a", "/a//b", "/..", "/a/../../etc", "/./a", "/a\0b", "/a\nb", "..slice/..", "/cgroup.procs/x"),
        *("/kurma", "/kurma/x", f"/kurma/{UUID}", f"/kurma-{UUID}/x", f"/a/kurma-{UUID}"),
        *("/" + "a" * 256, "/" + "a/" * 1600),
    ],
)
def test_other_words_are_refused(text):
    with pytest.raises(ValueError):
        expanded(text)


def test_the_error_names_the_annotation(pod_manifest):
    with pytest.raises(ManifestError, match=r"annotation kurma.io/cgroup-parent: expected an absolute path"):
        parent_of(pod_manifest("../x"))
    assert parent_of(pod_manifest("/x")) == "x"
    assert parent_of(pod_manifest(None)) is None


@pytest.fixture
def pod_manifest():
    from kurma_core.appc.pod import PodManifest

    def make(parent):
        notes = [] if parent is None else [{"name": "kurma.io/cgroup-parent", "value": parent}]
        return PodManifest.parse(
            {"acKind": "PodManifest", "acVersion": "0.8.11", "apps": [], "volumes": [], "annotations": notes}
        )

    return make


def test_the_names_of_cgroups():
    assert cgroup_of(UUID) == f"kurma/{UUID}"
    assert cgroup_of(UUID, "") == f"kurma-{UUID}"
    assert cgroup_of(UUID, "a/b") == f"a/b/kurma-{UUID}"
    # The core makes a tree of each.
    for parent in (None, "", "a/b"):
        CgroupTree(cgroup_of(UUID, parent), Layout([]))
