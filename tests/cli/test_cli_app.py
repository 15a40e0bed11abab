"""``kurma app``: what its options ask for, and what it prints."""

from __future__ import annotations

import json
import os
from types import ModuleType
from typing import Any

import pytest

from kurma_core.api.pods import AppOverrides, PodRequest
from kurma_core.cli.main import main
from kurma_core.errors import StagerError
from kurma_core.models.isolator import IsolatorReport
from kurma_core.models.pod import AppExecution, AppStatus
from tests.cli import json_fields


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def run(fakes: ModuleType, words: str, **answers: Any) -> tuple[int, Any]:
    client = fakes.FakeClient(answers=answers)
    return main(["app", *words.split()], connect=client.connect), client


def request_of(fakes: ModuleType, words: str) -> PodRequest:
    code, client = run(fakes, f"add web {words}")
    assert [(name, args[0]) for name, args, _ in client.calls] == [("app_add", "web")], code
    request = client.calls[0][1][1]
    assert isinstance(request, PodRequest)
    return request


def test_an_image_alone(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    code, client = run(fakes, "add web docker://127.0.0.1:5000/library/redis:7")
    ((_, (_, request), more),) = client.calls
    assert (code, more["start"]) == (0, False)
    assert [(app.name, app.image.locator) for app in request.template.pod.apps] == [
        ("redis", "docker://127.0.0.1:5000/library/redis:7")
    ]
    assert request == PodRequest(request.template)
    assert capsys.readouterr().out == "redis\n"
    assert run(fakes, "add --start web img")[1].calls[0][2]["start"] is True


def test_every_option(fakes: ModuleType, tmp_path: Any) -> None:
    (tmp_path / "env").write_text("C=3\n")
    request = request_of(
        fakes,
        f"img --name db -e A=1 --env-file {tmp_path}/env --user www:5 --workdir /srv --exec /bin/x --read-only "
        "--memory 1G --isolator os/linux/x=1 --grant os/linux/privileged "
        "-v /host:/data:ro --volume name=v,kind=empty --mount volume=v,target=/v "
        "--annotation kurma.io/restart=always --pull never --insecure-options image --strict-isolators "
        "--strict-volumes --allow-volume-links --verify -- a --b",
    )
    assert request.overrides == {
        "db": AppOverrides(
            arguments=("a", "--b"),
            exec=("/bin/x",),
            user="www",
            group="5",
            working_directory="/srv",
            environment=(("C", "3"), ("A", "1")),
            isolators=(("resource/memory", {"limit": "1G"}), ("os/linux/x", 1)),
        )
    }
    pod = request.template.pod
    (app,) = pod.apps
    assert (app.name, app.read_only_rootfs, app.annotation("kurma.io/restart")) == ("db", True, "always")
    # What -v binds is the app's own: its name gives way to one that the pod has.
    own, shared = app.mounts
    assert (own.path, own.app_volume.source, own.app_volume.read_only) == ("/data", "/host", True)  # type: ignore
    assert (shared.volume, shared.path, shared.app_volume) == ("v", "/v", None)
    assert [(volume.name, volume.kind) for volume in pod.volumes] == [("v", "empty")]
    assert (request.pull, request.insecure, request.verify) == ("never", {"image"}, True)
    assert (request.strict_isolators, request.strict_volumes, request.allow_volume_links) == (True, True, True)
    assert request.grants == ("os/linux/privileged",)


def test_a_terminal_and_an_open_standard_input(fakes: ModuleType) -> None:
    (app,) = request_of(fakes, "img -it --annotation kurma.io/stdin=false --annotation a=b").template.pod.apps
    assert [app.annotation(name) for name in ("kurma.io/terminal", "kurma.io/stdin", "a")] == ["true", "true", "b"]
    (app,) = request_of(fakes, "img").template.pod.apps
    assert app.annotations == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("add web", "missing argument 'IMAGE'"),
        ("add web img --name Not_a_name", "--name"),
        ("add web img --name ''", "--name"),
        ("add web img -v .data:/data", "-v: '.data' is neither a path nor the name of a volume"),
        ("add web img --mount data", "--mount"),
        ("add web img --net host", "--net"),
        ("start web", "missing argument 'APP"),
        ("stop web a --timeout soon", "--timeout: 'soon' is not a duration"),
        ("nothing", "nothing"),
    ],
)
def test_wrong_words(fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    code, client = run(fakes, words)
    assert (code, client.calls) == (2, [])
    assert said in capsys.readouterr().err


def test_isolators_that_are_not_enforced_are_told(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    reports = (IsolatorReport("a", "img", "ignored", "why"), IsolatorReport("b", "old", "ignored"))
    run(fakes, "add web img", app_add=fakes.record(isolators=reports))
    assert capsys.readouterr().err == "kurma: isolator a of app img is ignored: why\n"


def test_start_stop_and_rm_do_each(fakes: ModuleType) -> None:
    code, client = run(fakes, "start web a b")
    calls = [("app_start", ("web", app), {"managed": False}) for app in "ab"]
    assert (code, client.calls) == (0, calls)
    assert run(fakes, "start web a --force")[1].calls[0][2] == {"managed": True}
    code, client = run(fakes, "stop web a --timeout 1m")
    assert client.calls == [("app_stop", ("web", "a"), {"timeout": 60.0, "force": False, "managed": False})]
    assert run(fakes, "stop web a --force")[1].calls[0][2] == {"timeout": None, "force": True, "managed": True}
    assert run(fakes, "rm web a -f")[1].calls == [("app_rm", ("web", "a"), {"force": True, "managed": True})]


def test_one_failure_does_not_keep_it_from_the_rest(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    code, client = run(fakes, "start web a b", app_start=StagerError("the stager refuses: full"))
    assert (code, len(client.calls)) == (125, 2)
    assert capsys.readouterr().err.count("kurma: the stager refuses: full\n") == 2


APPS = (
    AppStatus("nginx", pid=77, started_at="2024-05-31T12:00:01Z", instance=1),
    AppStatus("db", exited=True, exit_code=137, reason="oom", restarts=2, instance=3, earlier=(AppExecution(1),)),
    AppStatus("late"),
)


def test_list(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    images = {"nginx": "sha512-" + "ab" * 64, "db": "sha512-ab", "late": "sha512-ab"}
    names = {"nginx": "registry://nginx:1.27", "db": "/srv/images/db.aci"}
    pod = fakes.record(apps=APPS, images=images, image_names=names)
    assert run(fakes, "list web", pod=pod)[0] == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["APP", "IMAGE", "STATE", "PID", "RESTARTS", "EXIT"],
        ["nginx", "registry://nginx:1.27", "running", "77", "0", "-"],
        ["db", "db.aci", "oom", "-", "2", "137"],
        ["late", "sha512-ab", "created", "-", "0", "-"],
    ]
    run(fakes, "list web --format json", pod=pod)
    json_fields.check("app list", json.loads(capsys.readouterr().out))
