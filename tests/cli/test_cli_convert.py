"""``image convert`` and ``pod convert`` (E10), and an early pod's file on its way to a request (E2, E7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kurma_core.appc.early_image import convert_image
from kurma_core.appc.early_pod import convert_pod
from kurma_core.appc.image import ImageManifest
from kurma_core.cli.main import main
from kurma_core.errors import ImageNotFoundError
from kurma_core.models.network import NetworkRequest
from kurma_core.named_files import opened
from tests.appc.early_samples import APP, FILESET, POD, changed

UUID = "6733c088-a507-4694-aabf-edbe4fc5266f"
ID = "sha512-" + "ab" * 64


class Client:
    """Of a store that holds one image, under one early ID."""

    def __init__(self, early_id: str, manifest: ImageManifest) -> None:
        self._early_id = early_id
        self._manifest = manifest
        self.here = SimpleNamespace(images=SimpleNamespace(files=self))

    def close(self) -> None:
        return

    def archive_path(self, reference: str) -> str | None:
        return reference if reference.startswith("/") else None

    def image(self, reference: str) -> Any:
        if reference not in (self._early_id, ID):
            raise ImageNotFoundError(f"the store holds no image {reference}")
        return SimpleNamespace(record=SimpleNamespace(id=ID))

    def image_manifest(self, reference: str) -> bytes:
        self.image(reference)
        return json.dumps(self._manifest.to_json()).encode()

    def inspect(self, path: str) -> Any:
        opened(path).close()
        return SimpleNamespace(contents=SimpleNamespace(manifest=self._manifest))


def printed(capsys: pytest.CaptureFixture[str], *words: str, client: Any = None) -> tuple[int, Any, str]:
    code = main(words, connect=None if client is None else lambda _: client)
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def write(directory: Path, name: str, document: object) -> str:
    (directory / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return str(directory / name)


@pytest.fixture
def client() -> Any:
    return Client(POD["apps"][1]["imageID"], convert_image(APP, FILESET))


def test_convert_prints_the_late_form_of_a_manifest_file(tmp_path, capsys):
    app, fileset = write(tmp_path, "app", APP), write(tmp_path, "fileset", FILESET)
    assert printed(capsys, "image", "convert", app) == (0, convert_image(APP, None).to_json(), "")
    assert printed(capsys, "image", "convert", fileset) == (0, convert_image(None, FILESET).to_json(), "")
    both = convert_image(APP, FILESET).to_json()
    assert printed(capsys, "image", "convert", app, fileset) == (0, both, "")
    assert printed(capsys, "image", "convert", fileset, app) == (0, both, "")
    late = write(tmp_path, "late", both)
    assert printed(capsys, "image", "convert", late) == (0, both, "")


def test_convert_prints_the_manifest_of_an_archive_and_of_the_store(tmp_path, capsys, client):
    archive = write(tmp_path, "x.aci", "no JSON")
    late = convert_image(APP, FILESET).to_json()
    assert printed(capsys, "image", "convert", archive, client=client) == (0, late, "")
    reference = POD["apps"][1]["imageID"]
    assert printed(capsys, "image", "convert", reference, client=client) == (0, late, "")


def test_convert_says_what_is_odd_and_what_is_wrong(tmp_path, capsys, client):
    odd = write(tmp_path, "odd", changed(APP, "x", to=1))
    code, late, err = printed(capsys, "image", "convert", odd)
    assert (code, late["x"]) == (0, 1)
    assert "unknown key $.x is kept" in err
    run_together = changed(APP, "isolators", 3, "val", to="CAP_CHOWNCAP_KILL")
    code, late, err = printed(capsys, "image", "convert", write(tmp_path, "bad", run_together))
    assert (code, late) == (125, None)
    assert f"kurma: {tmp_path}/bad: invalid manifest: $.isolators[3].val: expected" in err
    assert 'hint: write "CAP_CHOWN CAP_KILL"' in err
    two = write(tmp_path, "one", APP), write(tmp_path, "two", APP)
    assert printed(capsys, "image", "convert", *two)[0] == 2
    code, _, err = printed(capsys, "image", "convert", str(tmp_path / "none"), client=client)
    assert (code, err) == (125, f"kurma: {tmp_path}/none: cannot be read: no such file or directory\n")
    code, _, err = printed(capsys, "image", "convert", "example.com/none", client=client)
    assert code == 125
    assert "the store holds no image" in err
    for number, pod in enumerate((POD, convert_pod(POD).to_json())):
        code, _, err = printed(capsys, "image", "convert", write(tmp_path, f"pod-{number}", pod))
        assert code == 2
        assert f"hint: kurma pod convert {tmp_path}/pod-{number}" in err
    for number, image in enumerate((APP, FILESET, convert_image(APP, FILESET).to_json())):
        code, _, err = printed(capsys, "pod", "convert", write(tmp_path, f"image-{number}", image))
        assert code == 2
        assert f"hint: kurma image convert {tmp_path}/image-{number}" in err


def test_convert_pod_completes_what_the_store_has(tmp_path, capsys, client):
    code, late, err = printed(capsys, "pod", "convert", write(tmp_path, "pod.json", POD), client=client)
    assert code == 0
    first, second, _ = late["apps"]
    assert second["image"]["id"] == ID
    limits = [one["value"] for one in second["app"]["isolators"] if one["name"] == "resource/memory"]
    assert limits == [{"limit": "1Gi"}]
    assert "kurma.io/isolators" not in second
    assert first["image"]["id"] == POD["apps"][0]["imageID"]
    assert f"app reduce-worker: image {POD['apps'][0]['imageID']} is not in the store" in err
    again = write(tmp_path, "late.json", late)
    assert printed(capsys, "pod", "convert", again, client=client) == (0, late, "")


def test_convert_pod_refuses_broken_json_where_it_breaks(tmp_path, capsys, client):
    broken = json.dumps(POD).replace('"val": "1G"', '"val" "1G"')
    code, late, err = printed(capsys, "pod", "convert", write(tmp_path, "pod.json", broken), client=client)
    assert (code, late) == (125, None)
    assert "line 1, column " in err


@pytest.mark.parametrize("document", [POD, convert_pod(POD).to_json()], ids=["early", "late"])
def test_convert_pod_names_the_file_and_the_place(tmp_path, capsys, client, document):
    wrong = write(tmp_path, "wrong.json", changed(document, "volumes", 0, "source", to="opt"))
    code, late, err = printed(capsys, "pod", "convert", wrong, client=client)
    assert (code, late) == (125, None)
    assert f"kurma: {wrong}: invalid manifest: $.volumes[0].source: expected an absolute path" in err


@pytest.mark.parametrize("name", ["pod", "pod.json", "pod.yml"])
def test_early_pod_must_be_json_whatever_its_files_name(tmp_path, capsys, client, name):
    text = json.dumps(POD)
    assert printed(capsys, "pod", "convert", write(tmp_path, name, text), client=client)[0] == 0
    yaml = text.replace('"uuid": "', '"uuid": !!str "')
    code, late, err = printed(capsys, "pod", "convert", write(tmp_path, name, yaml), client=client)
    assert (code, late) == (125, None)
    assert "expected well-formed JSON" in err


@pytest.mark.parametrize("early", [True, False], ids=["early", "converted"])
def test_early_pod_arrives_in_the_request(monkeypatch, tmp_path, capsys, fakes: ModuleType, early):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    document = changed(POD, "isolators", to={"privateNetwork": "false"})
    file = write(tmp_path, "pod.json", document if early else convert_pod(document).to_json())
    fake = fakes.FakeClient()
    main(["run", "--pod", file], connect=fake.connect)
    request = fake.calls[0][1][0]
    assert request.uuid == UUID
    assert request.template == convert_pod(document)
    assert request.networks is None
    assert request.template.networks is None
    fake = fakes.FakeClient()
    main(["prepare", "--pod", file, "--net", "none"], connect=fake.connect)
    assert fake.calls[0][1][0].networks == (NetworkRequest("none"),)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[1", "standard input: line 2, column 1: not YAML:"),
        (b"\xff", "standard input: not UTF-8: byte 0"),
        (b'{"apps": 5}', "standard input is not a pod: it has no list of apps"),
        (b'{"acKind": "ImageManifest"}', "standard input is an image's manifest"),
    ],
)
def test_standard_input_is_called_so(text: bytes, said: str) -> None:
    for words in (("pod", "convert", "-"), ("run", "--pod", "-")):
        code = f"import sys; from kurma_core.cli.main import main; sys.exit(main({list(words)!r}))"
        done = subprocess.run(
            [sys.executable, "-c", code], input=text, capture_output=True, check=False, timeout=60
        )
        assert b"/dev/stdin" not in done.stderr
        if words[0] == "pod":
            assert done.stderr.decode().startswith(f"kurma: {said}")
