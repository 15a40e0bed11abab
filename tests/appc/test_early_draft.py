"""E8, E9: the early draft's pod example, character for character: not JSON in two places, and refused at each."""

from __future__ import annotations

import pytest

from kurma_core.appc.early_pod import convert_pod
from kurma_core.errors import ManifestError
from tests.appc.early_samples import POD

#: App Container Specification 0.1.0, Container Runtime Manifest Schema.
DRAFT = """\
{

    "acVersion": "0.1.0",
    "acKind": "ContainerRuntimeManifest",
    "uuid": "6733C088-A507-4694-AABF-EDBE4FC5266F",
    "apps": [
        {
            "app": "example.com/reduce-worker-1.0.0",
            "imageID": "sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac"
        },
        {
            "app": "example.com/worker-backup-1.0.0",
            "imageID": "sha256-3e86b59982e49066c5d813af1c2e2579cbf573de",
            "isolators": [
                {"name": "memory/limit" "val": "1G"}
            ],
            "annotations": {
                "foo": "baz"
            }
        },
        {
            "app": "example.com/reduce-worker-register-1.0.0",
            "imageID": "sha256-86298e1fdb95ec9a45b5935504e26ec29b8feffa"
        }
    ],
    "volumes": [
        {
            "kind": "host",
            "source": "/opt/tenant1/work",
            "readOnly": true,
            "fulfills": [
                "work"
            ]
        },
        {
            "kind": "empty",
            "fulfills": [
                "buildOutput"
            ]
        }
    ],

    "isolators": {
        {
           "name": "memory/limit",
           "value": "4G"
        }
    },

    "annotations": {
        "ip-address": "10.1.2.3"
    }
}
"""
NO_COMMA = '"memory/limit" "val"'
NO_LIST = """"isolators": {
        {
           "name": "memory/limit",
           "value": "4G"
        }
    }"""


def refused(text: str) -> tuple[int, int]:
    """Line and column of what is wrong; the message has them, too."""
    with pytest.raises(ManifestError, match="well-formed JSON") as caught:
        convert_pod(text)
    line, column = caught.value.data["line"], caught.value.data["column"]
    assert f"line {line}, column {column}" in str(caught.value)
    return line, column


def test_early_draft_is_refused_where_it_is_no_json():
    without_comma = DRAFT.splitlines().index('                {"name": "memory/limit" "val": "1G"}')
    assert refused(DRAFT) == (without_comma + 1, DRAFT.splitlines()[without_comma].index('"val"') + 1)
    mended = DRAFT.replace(NO_COMMA, '"memory/limit", "val"')
    without_list = mended.splitlines().index('    "isolators": {')
    assert refused(mended) == (without_list + 2, 9)


def test_early_draft_says_what_it_means_once_it_is_json():
    mended = DRAFT.replace(NO_COMMA, '"memory/limit", "val"')
    of_list = mended.replace(NO_LIST, '"isolators": [{"name": "memory/limit", "value": "4G"}]')
    of_object = mended.replace(NO_LIST, '"isolators": {"memory/limit": "4G"}')
    assert convert_pod(of_list) == convert_pod(of_object) == convert_pod(POD)
