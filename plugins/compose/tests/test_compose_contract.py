"""The commands against the contract of all commands, and the order of their steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kurma_compose.down
import kurma_compose.up
import pytest
from kurma_compose import project
from kurma_testing.commands import CommandContract
from kurma_testing.commands import TestSession as Session

from kurma_core.errors import PodStateError, UsageError
from kurma_core.hookspecs.command import CommandHooks
from kurma_core.models.pod import PodRecord


def _after(name: str, other: str, how: str = "after-healthy") -> dict[str, Any]:
    """A pod that waits for another."""
    return {"name": name, "apps": [], "annotations": [{"name": f"kurma.io/up/{how}", "value": other}]}


def _first(name: str) -> dict[str, Any]:
    """A pod with an app that runs before the others."""
    annotations = [{"name": "kurma.io/up/first", "value": "true"}]
    return {"name": name, "apps": [{"name": "a", "image": "/a.aci", "annotations": annotations}]}


@pytest.mark.kurma_driver(kurma_compose.up)
class TestUp(CommandContract):
    @pytest.mark.parametrize(
        ("pods", "message"),
        [
            ([{"apps": []}], "pod 1 has no name"),
            ([{"name": "a", "apps": []}, {"name": "a", "apps": []}], "two pods have the name a"),
            ([_after("a", "b"), {"name": "b", "apps": []}], "pod a waits for pod b, which comes after it"),
            ([_after("a", "a")], "pod a waits for itself"),
            (
                [_first("b"), _after("a", "b", "after-success")],
                "pod a waits for the end of pod b, which does not end by itself",
            ),
            ([{"name": "a", "apps": [], "projct": 1}], "unknown key $.projct"),
        ],
    )
    def test_a_malformed_file_changes_nothing(
        self, driver: CommandHooks, tmp_path: Path, pods: list[dict[str, Any]], message: str
    ) -> None:
        file = tmp_path / "pods.json"
        file.write_text(json.dumps({"pods": pods}))
        done = self.run(driver, str(file))
        assert message in str(done.exception)

    @pytest.mark.parametrize(
        ("configs", "own", "message"),
        [
            ([], [], "$.configs: expected an object, found an empty list"),
            ({"_a": "x"}, [], "$.configs._a: expected letters, digits, '.', '_' and '-' in the name"),
            ({"a": ""}, [], '$.configs.a: expected a text that is not empty, found ""'),
            ({"a": 1}, [], "$.configs.a: expected a text that is not empty, found 1"),
            ({"a": "x"}, {}, "$.pods[0].apps[0].configs: expected a list of objects, found an object"),
            ({"a": "x"}, ["a"], "$.pods[0].apps[0].configs: expected a list of objects"),
            ({"a": "x"}, [{"name": "b"}], '$.pods[0].apps[0].configs: there is no config "b"'),
            (None, [{"name": "b"}], '$.pods[0].apps[0].configs: there is no config "b"'),
            ({"a": "x"}, [{"name": "a"}], "config a needs a target"),
            ({"a": "x"}, [{"name": "a", "target": "/a", "mode": "9"}], "$.apps[0].secrets[0].mode"),
        ],
    )
    def test_malformed_contents_of_files(
        self, driver: CommandHooks, tmp_path: Path, configs: object, own: object, message: str
    ) -> None:
        file = tmp_path / "pods.json"
        pod = {"name": "a", "apps": [{"name": "b", "image": "./b", "configs": own}]}
        file.write_text(json.dumps({"pods": [pod], "configs": configs}))
        text = str(self.run(driver, str(file)).exception)
        assert message in text
        assert str(file) in text

    def test_a_wrong_pull_is_refused(self, driver: CommandHooks) -> None:
        assert "--pull: 'some' is not one of" in str(self.run(driver, "--pull", "some", "x.yml").exception)

    def test_a_compose_file_has_a_hint(self, driver: CommandHooks, tmp_path: Path) -> None:
        file = tmp_path / "compose.yml"
        file.write_text("services: {web: {image: nginx}}")
        error = self.run(driver, str(file)).exception
        assert isinstance(error, UsageError)
        assert str(error.hint).startswith(f"kurma compose convert {file}")

    def test_options_of_docker_compose_have_a_hint(self, driver: CommandHooks) -> None:
        for words, hint in ((["-d"], "in the background"), (["-f", "x.yml"], "kurma up FILE")):
            error = self.run(driver, *words).exception
            assert isinstance(error, UsageError)
            assert hint in str(error.hint)


@pytest.mark.kurma_driver(kurma_compose.down)
class TestDown(CommandContract):
    def test_it_removes_pods_of_its_project_alone(self, driver: CommandHooks, tmp_path: Path) -> None:
        file = tmp_path / "pods.json"
        file.write_text(json.dumps({"pods": [], "project": "shop"}))
        assert self.run(driver, str(file), answers={"pods": []}).output == ""

    def test_failures_are_told_and_keep_no_other_pod(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Only those that a failed one depends on."""
        removed = []

        def stop(pod: str, **_: Any) -> None:
            if pod == "of web":
                raise PodStateError("it hangs", pod=pod)

        def rm(pod: str, **_: Any) -> None:
            if pod == "of other":
                raise PodStateError("its disk is full", pod=pod)
            removed.append(pod)

        pods = [_running("db"), _running("web", "db"), _running("other"), _running("cache")]
        session = Session({"pods": pods, "pod_stop": stop, "pod_remove": rm})
        with pytest.raises(PodStateError, match="its disk is full"):
            project.take_down(session, session.client, "shop", [pod.name for pod in pods])
        assert removed == ["of cache"]
        told = capsys.readouterr()
        assert told.out == "cache: removed\n"
        assert told.err.splitlines() == [
            "pod web: it hangs",
            "pod db is left, since pod web, which depends on it, could not be stopped",
        ]


def _running(name: str, after: str = "") -> PodRecord:
    """A pod of the project that runs. :param after: the name of a pod that it depends on."""
    annotations = [{"name": "kurma.io/up/project", "value": "shop"}, {"name": "kurma.io/up/after", "value": after}]
    return PodRecord(
        uuid=f"of {name}",
        name=name,
        state="running",
        created_at="2026-01-01T00:00:00Z",
        stager="default",
        renderer="overlay",
        apps=(),
        images={},
        manifest={"annotations": annotations},
    )
