"""Records with a value of a wrong type: told as damaged, or passed over, and never a TypeError (G7)."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kurma_net_aci.records import Place
from kurma_net_bridge.choices import Choices
from kurma_net_bridge.records import NetworkRecords
from kurma_net_cni.records import Records
from kurma_stager_rkt.records import Note
from kurma_stager_rkt.stage1_image import Stage1

from kurma_core.errors import KurmaError, ManifestError
from kurma_core.image_store import ImageStore
from kurma_core.images.locator_cache import LocatorCache
from kurma_core.journal import Cursor, Journal
from kurma_core.models.network import Attachment, NetworkRequest, PortMapping
from kurma_core.networking.network_records import JoinRecords
from kurma_core.pods.network.name_resolution import Names
from kurma_core.pods.network.port_claims import Claims
from kurma_core.pods.record.document import PodDocument
from kurma_core.schema import SchemaError, fit
from kurma_core.value import fields
from tests.pods.documents import pod_document
from tests.wrong_values import damaged

_ID = "sha512-" + "ab" * 64
_POD = "11111111-1111-4111-8111-111111111111"
_ATTACHMENT = Attachment("n", "bridge", "eth0", {}, NetworkRequest("n"), (PortMapping(80, 80),)).to_json()
_IMAGE = {
    "version": 1,
    "id": _ID,
    "name": "example.com/a",
    "labels": {"version": "1"},
    "layers": [_ID],
    "layersSize": 1,
    "provenance": [{"locator": "a", "fetchedAt": "2026-01-01T00:00:00Z", "trust": "local", "insecure": ["image"]}],
}


def _names(at: Path) -> None:
    Names(str(at), str(at / "pods"), lambda _: None).leave("other", None)


def _images(at: Path) -> None:
    store = ImageStore(str(at))
    found, wrong = store.scan()
    for image in found:
        _ = image.trust, image.age_order, image.to_json()
    assert len(found) + len(wrong) == 1
    with suppress(KurmaError):
        store.find("example.com/a:1")


#: The file below a directory, what stands in it, and what reads it.
READERS: dict[str, tuple[str, Any, Any]] = {
    "image": (f"images/{_ID}/image.json", _IMAGE, _images),
    "joined": (
        f"networks/pods/{_POD}",
        {"version": 1, "name": "p", "boot": "b", "attachments": [_ATTACHMENT]},
        lambda at: JoinRecords(str(at)).read(_POD),
    ),
    "claim": (
        f"{_POD}:1",
        {
            "version": 1,
            "directory": "/x/pods/p",
            "name": "p",
            "boot": "b",
            "network": os.stat("/proc/self/ns/net").st_ino,
            "ports": _ATTACHMENT["ports"],
        },
        lambda at: list(Claims(str(at)).others("/x/pods/q")),
    ),
    "names": (
        "networks/names.json",
        {
            "version": 1,
            "pods": {
                _POD: {
                    "namespace": "/proc/self/ns/net",
                    "name": "p",
                    "hostname": "h",
                    "own": ["p"],
                    "networks": {"n": ["10.0.0.1"]},
                }
            },
        },
        _names,
    ),
    "chosen bridge": (
        "choices/n.json",
        {"version": 1, "bridge": "kurma0", "subnet": "10.9.0.0/24", "subnet6": None},
        lambda at: Choices(str(at), (), ()).complete({"name": "n"}, choose=True),
    ),
    "known": (
        "one",
        {"version": 1, "locator": "a", "image": _ID, "key": "k", "fetched": 1.0, "maxAge": 1},
        lambda at: (LocatorCache(str(at)).images("a"), LocatorCache(str(at)).forget([_ID])),
    ),
    "event": (
        "events/events",
        {"seq": 1, "at": "t", "subject": "pod", "kind": "running", "id": _POD, "name": "p", "detail": {}},
        lambda at: [event.to_json() for event in Cursor(Journal(str(at)), 0).read()],
    ),
    "bridge": (
        "networks/n/network.json",
        {
            "version": 1,
            "id": "00000000",
            "network": "n",
            "bridge": "b",
            "subnets": ["10.0.0.0/24"],
            "masquerade": True,
            "isolated": False,
            "reaches": [],
            "former": [],
        },
        lambda at: (NetworkRecords(str(at), "n").id(), NetworkRecords(str(at), "n").read()),
    ),
    "bridge's ports": (
        f"networks/n/ports/{_POD}",
        {"version": 1, "addresses": ["10.0.0.2"], "ports": _ATTACHMENT["ports"]},
        lambda at: NetworkRecords(str(at), "n").published(_POD),
    ),
    "cni": (
        f"results/{_POD}:eth0:n.json",
        {
            "version": 1,
            "network": "n",
            "pod": _POD,
            "interface": "eth0",
            "result": {},
            "joined": True,
            "leaving": False,
            "left": [0],
            "refused": None,
            "cni_version": "1.0.0",
            "pod_name": "p",
            "namespace": "/x",
            "attachment": _ATTACHMENT,
        },
        lambda at: [record.context() for record in Records(str(at)).all() if record is not None],
    ),
    "aci": (
        f"networks/n/joined/{_POD}:eth0.json",
        {
            "version": 1,
            "pod": _POD,
            "podName": "p",
            "namespace": "/x",
            "image": _ID,
            "added": True,
            "attachment": _ATTACHMENT,
        },
        lambda at: Place(str(at), "n").read(_POD, "eth0"),
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_record_with_a_wrong_value(tmp_path: Path, kind: str) -> None:
    name, whole, read = READERS[kind]
    for number, value in enumerate([*damaged(whole, each=5), [], 7, None, "text"]):
        at = tmp_path / str(number)
        (at / name).parent.mkdir(parents=True)
        (at / name).write_text(json.dumps(value) + "\n")
        with suppress(KurmaError):
            read(at)


def test_a_pods_record_with_a_wrong_value() -> None:
    """Every key that Kurma writes has a shape."""
    held = {"app": ("kurma.io/pids-limit",)}
    whole = pod_document(held=held, grants={"": ("os/linux/privileged",)}).to_json()
    assert len(whole) == len(fields(PodDocument))
    for value in damaged(whole, each=5):
        with suppress(SchemaError, ManifestError):
            PodDocument.from_json(value)


def test_a_stage1s_record_with_a_wrong_value(tmp_path: Path) -> None:
    """It is read as it was written, or not at all."""
    file = tmp_path / "stage1.json"
    stage1 = Stage1("example.com/s", 5, {"run": "/run"})
    note = Note("kurma/p", _ID, "/x", stage1, local_config="c", lifted=("paths",), private_users=(1, 2))
    note.write(str(file))
    assert Note.of_file(str(file)) == note
    for value in damaged(json.loads(file.read_text()), each=5):
        file.write_text(json.dumps(value))
        found = Note.of_file(str(file))
        if found is not None:
            found.write(str(file))
            assert json.loads(file.read_text()) == {**value, "version": 1}


def test_where_it_is_and_what_was_expected() -> None:
    shape = {"name": str, "ports": [range(1, 10)], "how?": (frozenset(("a", "b")), None), "pair?": [str, int]}
    fit({"name": "n", "ports": [], "more": 7}, shape, "it")
    fit({"name": "n", "ports": [9], "how": None, "pair": ["x", 1 << 70]}, shape, "it")
    for value, said in (
        ([], "it: expected an object, found an empty list"),
        ({"ports": []}, "it.name is missing"),
        ({"name": None, "ports": []}, "it.name: expected a string, found null"),
        ({"name": "\ud800", "ports": []}, "it.name: expected Unicode text, found a lone surrogate"),
        (
            {"name": "n", "ports": [3, True]},
            "it.ports[1]: expected an integer from 1 to 9, found true",
        ),
        ({"name": "n", "ports": [], "how": "c"}, 'it.how: expected one of a, b, found "c"'),
        ({"name": "n", "ports": [], "pair": ["x"]}, "it.pair: expected 2 values, found 1"),
    ):
        with pytest.raises(SchemaError) as caught:
            fit(value, shape, "it")
        assert str(caught.value) == said
