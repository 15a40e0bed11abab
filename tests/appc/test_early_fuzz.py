"""Early documents with anything anywhere: refused as manifests are, or converted to what is read again so."""

from __future__ import annotations

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples

from kurma_core.appc.early_image import convert_any
from kurma_core.appc.early_pod import convert_pod
from kurma_core.appc.image import App, ImageManifest
from kurma_core.appc.pod import PodManifest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ManifestError
from tests.appc.early_samples import APP, FILESET, POD

_LATE_KEYS = sorted(
    {
        *ImageManifest.parse(convert_any(APP).to_json()).to_json(),
        *App(user="0", group="0").to_json(),
        *PodManifest(()).to_json(),
        *("labels", "app", "dependencies", "pathWhitelist", "ports", "networks", "userLabels", "userAnnotations"),
        *("imageID", "imageName", "size", "image", "mounts", "readOnlyRootFS", "mode", "uid", "gid", "recursive"),
        *("kurma.io/root", "kurma.io/uuid", "kurma.io/isolators", "kurma.io/fulfills", "kurma.io/seed"),
        *("value", "val", "count", "name", "path", "supplementaryGIDs", "workingDirectory"),
    }
)
_WORDS = st.sampled_from(
    ["", "/", "/a/../b", "a", "x-1.0.0", "1G", "true", "eth0 1K", "sha256-123456", "CAP_KILL"]
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 70000) | _WORDS | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_LATE_KEYS) | _WORDS, inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def spoilt(draw, *documents):
    """One of ``documents`` with something else at up to three places."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            new = isinstance(place, dict) and draw(st.integers(0, 3)) == 0
            if new or not keys:
                if isinstance(place, dict):
                    place[draw(st.sampled_from(_LATE_KEYS))] = draw(_ANYTHING)
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and draw(st.booleans()):
                place = place[key]
                continue
            place[key] = draw(_ANYTHING)
            break
    return document


@settings(max_examples=examples(60), deadline=None)
@given(spoilt(APP, FILESET))
def test_early_images_with_anything_in_them(document):
    try:
        converted = convert_any(document)
    except ManifestError:
        return
    assert ImageManifest.parse(json.dumps(converted.to_json())) == converted


@settings(max_examples=examples(60), deadline=None)
@given(spoilt(POD))
def test_early_pods_with_anything_in_them(document):
    try:
        converted = convert_pod(document)
    except ManifestError:
        return
    assert PodTemplate.parse(json.dumps(converted.to_json())) == converted
