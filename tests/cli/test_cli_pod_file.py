"""Files of pods: paths in them, their variables, and several pods in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kurma_core.api.pod_file import only_pod, pods_of, read, read_value
from kurma_core.errors import KurmaError, UsageError

SHARED = """
pods:
  - name: one
    apps: &apps
      - name: a
        image: ./a.aci
        environmentFiles: [sub/first.env, ../second.env]
        environment: [{name: B, value: own}]
        mounts: [{volume: v, path: /v, appVolume: {name: v, kind: host, source: ../v}}]
    volumes:
      - {name: site, kind: host, source: ./site}
      - {name: other, kind: host, source: /srv/../other}
      - {name: image, kind: image, kurma.io/image: ./b.aci}
  - name: two
    apps: *apps
project: shop
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """``above/below`` with the file, and a link to it."""
    below = tmp_path / "above/below"
    (below / "sub").mkdir(parents=True)
    (below / "sub/first.env").write_text("# a comment\nA=1\nB=2\nC=3\n")
    (below / "../second.env").resolve().write_text("C=a 'b'\n")
    (below / "pods.yml").write_text(SHARED)
    (tmp_path / "link").symlink_to(below)
    return below


def test_paths_are_relative_to_the_file(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    for file in (directory / "pods.yml", tmp_path / "link/pods.yml"):
        found = read(str(file))
        assert found.project == "shop"
        one, two = found.pods
        (app,) = one["apps"]
        assert app["image"] == f"{directory}/a.aci"
        assert app["mounts"][0]["appVolume"]["source"] == f"{directory.parent}/v"
        sources = [volume.get("source") for volume in one["volumes"]]
        assert sources == [f"{directory}/site", "/srv/../other", None]
        assert one["volumes"][2]["kurma.io/image"] == f"{directory}/b.aci"
        assert two["apps"] == one["apps"]
        assert two["apps"][0] is not app


def test_a_variable_of_the_app_replaces_those_of_files(directory: Path) -> None:
    (app,) = read(str(directory / "pods.yml")).pods[0]["apps"]
    assert "environmentFiles" not in app
    variables = [(one["name"], one["value"]) for one in app["environment"]]
    assert variables == [("A", "1"), ("C", "a 'b'"), ("B", "own")]


def test_standard_input_is_in_the_working_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    value = read_value("pods.yml")
    assert pods_of(value, "-").pods == read("pods.yml").pods


def test_a_command_for_one_pod_names_the_other_command(directory: Path) -> None:
    with pytest.raises(UsageError, match=r"pods.yml has 2 pods, and --pod takes one") as caught:
        only_pod(read_value(str(directory / "pods.yml")), str(directory / "pods.yml"), "--pod")
    assert "kurma up" in str(caught.value.hint)


APP = {"name": "a", "image": "b"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"pods": [], "projct": "a"}, r"unknown key \$.projct; did you mean project?"),
        ({"pods": {}}, r"\$.pods: expected a list"),
        ({"pods": [{"apps": [APP]}, {"app": []}]}, r"\$.pods\[1\] is not a pod: it has no list of apps"),
        ({"pods": [], "project": "A B"}, r"\$.project: expected"),
        ({"apps": [{**APP, "environmentFiles": "a"}]}, r"\$.apps\[0\].environmentFiles: expected a list of paths"),
        ({"apps": [{**APP, "environmentFiles": ["none"]}]}, r"environmentFiles: .*/none: cannot be read"),
    ],
)
def test_what_a_file_cannot_say(value: Any, message: str) -> None:
    with pytest.raises(KurmaError, match=message):
        pods_of(value, "pods.yml")
