"""Who may ask kurmad for what: every operation of the API is one or the other, on purpose, and what those see who
may only look has no secrets in it."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kurma_core.api.describe import openapi
from kurma_core.api.operations import OPERATIONS
from kurma_core.config import InitialPodConfig
from kurma_core.daemon.http.caller_rights import redacted
from kurma_core.daemon.pods.initial import ENTRY, InitialPods, _annotated
from kurma_core.errors import FetchError
from kurma_core.pods.daemon_interface import DaemonInterface
from tests.kit.waiting import until

#: For who may only look. Whoever adds an operation says here which it is: it changes nothing, starts nothing, and
#: shows no secrets, which apps have in their environments, their logs and their files.
READ = {
    "image_store_use",
    "disk",
    "events",
    "healthz",
    "host_checks",
    "image",
    "images",
    "info",
    "isolators",
    "listing",
    "metrics",
    "network",
    "networks",
    "openapi",
    "plugins",
    "pod",
    "pod_processes",
    "pod_wait",
    "pods",
    "secret",
    "secrets",
    "stagers",
    "trust",
    "usage",
    "version",
    "volume",
    "volumes",
}
FULL = {
    "answer",
    "app_update",
    "image_release",
    "pod_annotate",
    "app_add",
    "app_remove",
    "app_start",
    "app_stop",
    "app_reopen_log",
    "image_archive",
    "image_extract",
    "image_fetch",
    "image_gc",
    "image_manifest",
    "image_push",
    "image_remove",
    "image_render",
    "image_upload",
    "image_verify",
    "network_check",
    "network_remove",
    "pod_attach",
    "pod_enter",
    "pod_foreground",
    "pod_gc",
    "pod_healthcheck",
    "pod_kill",
    "pod_logs",
    "pod_logs_in_frames",
    "pod_prepare",
    "pod_remove",
    "pod_run",
    "pod_start",
    "pod_stop",
    "prune",
    "reload",
    "secret_create",
    "secret_remove",
    "stager_build",
    "stager_check",
    "trust_add",
    "trust_find",
    "trust_remove",
    "volume_create",
    "volume_prune",
    "volume_remove",
}
#: What of a value must not be seen, wherever it stands.
SECRET = "hunter2"


def test_every_operation_is_for_some() -> None:
    found = {name: one.rights for name, one in OPERATIONS.items()}
    assert found == {**dict.fromkeys(READ, "read"), **dict.fromkeys(FULL, "full")}


def test_who_only_looks_changes_nothing() -> None:
    for name, one in OPERATIONS.items():
        if one.rights == "read":
            assert one.verb == "GET", name
            assert one.takes is None, name
            assert not [each for each in one.parameters if "body" in each.place], name
            assert one.kind in ("json", "bytes"), name


def test_the_description_says_so() -> None:
    for path, ways in openapi()["paths"].items():
        for method, one in ways.items():
            (found,) = [each for each in OPERATIONS.values() if (each.path, each.verb) == (path, method.upper())]
            assert one["x-rights"] == found.rights


@pytest.mark.parametrize(
    "value",
    [
        {"manifest": {"apps": [{"app": {"environment": [{"name": "TOKEN", "value": SECRET}]}}]}},
        [{"pod": {"environment": [{"name": "TOKEN", "value": SECRET}]}}],
        {"networks": [{"name": "n", "config": {"token": SECRET}}]},
        {"plugins": ({"name": "n", "settings": {"deep": {"password": SECRET}}},)},
        {"metadata": {"url": f"http://169.254.169.255/{SECRET}"}},
        {"provenance": [{"locator": f"https://me:{SECRET}@example.com/a.aci"}]},
        {"url": f"https://{SECRET}@[::1"},
        {"url": f"https://me:{SECRET}@me:{SECRET}@example.com/a.aci"},
        {"locator": f"docker://me:{SECRET}@a@sha256:1"},
        {"daemon": {"prefetchImages": [{"name": f"https://me:{SECRET}@example.com/a.aci"}]}},
        {"processes": [{"pid": 1, "command": ["mysql", f"-p{SECRET}"]}]},
    ],
)
def test_what_they_see_has_no_secrets(value: Any) -> None:
    assert SECRET in json.dumps(value)
    assert SECRET not in json.dumps(redacted(value))


def test_why_an_image_cannot_be_had_has_no_password() -> None:
    """Whatever a plugin says."""

    def fetch(locator: str) -> None:
        raise FetchError(f"{locator}: there is nothing")

    config: Any = SimpleNamespace(initial_pods=(), prefetch_images=(f"x://me:{SECRET}@example.com/a",))
    services: Any = SimpleNamespace(images=SimpleNamespace(fetch=fetch))
    manager: Any = SimpleNamespace(services=services, store=SimpleNamespace(uuids=list))
    ready = threading.Event()
    ready.set()
    none: Any = None
    initial = InitialPods(DaemonInterface(manager), lambda: config, ready, none, none, none)
    initial.reconcile()
    error = until(lambda: initial.to_json()["prefetchImages"][0]["error"])
    initial.close()
    assert error == "x://example.com/a: there is nothing"
    assert initial.to_json()["prefetchImages"][0]["name"] == "x://example.com/a"


def test_what_a_pod_was_made_for_has_no_password() -> None:
    """Its annotations are for all to see; two entries that differ in the password alone stay two."""
    made = []
    for password in (SECRET, "other", SECRET):
        locator = f"x://me:{password}@example.com/a"
        entry = InitialPodConfig(name=None, key=locator, template={"apps": [{"name": "a", "image": locator}]})
        (mark,) = [one["value"] for one in _annotated(entry)["annotations"] if one["name"] == ENTRY]
        made.append(mark)
    assert SECRET not in json.dumps(made)
    assert made[0] == made[2] != made[1]
    plain = InitialPodConfig(name=None, key="x://example.com/a", template={"apps": []})
    assert {"name": ENTRY, "value": "x://example.com/a"} in _annotated(plain)["annotations"]


def test_they_see_all_the_rest() -> None:
    value = {
        "uuid": "u",
        "apps": [{"name": "main", "exited": True, "exitCode": 3}],
        "locator": "docker://example.com/a@sha256:1",
        "name": "docker://a@sha256:1",
        "url": "https://example.com/a%40b",
        "none": None,
    }
    assert redacted(value) == value
