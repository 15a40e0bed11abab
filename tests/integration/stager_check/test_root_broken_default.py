"""Lines ``changing.*`` and ``plan.*`` of a stager check: default stagers broken in one way each (G8, G10, 18)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kurma_stager_default import image

from kurma_core.api.host import CheckLine
from kurma_core.appc.image import ImageManifest
from kurma_core.image_store.builder import build_archive
from kurma_core.stager_check.check_image import declared
from kurma_core.stager_check.check_services import Patience
from kurma_core.stager_check.pods import Lab
from kurma_core.stager_check.report import Report

pytestmark = [pytest.mark.root, pytest.mark.full]

ISOLATORS = {"name": "kurma.io/stager/isolators", "value": "true"}
CALL_INS = {"name": "kurma.io/stager/callins", "value": "app-add,app-start,app-stop,app-rm"}
WRONG_LAYERS = (
    "pod/app_changes.py",
    ("    note = privileges.power_note", "    app.layers[:] = app.layers[::-1]\n    note = privileges.power_note"),
)
STOPS_ANOTHER = (
    "pod/app_changes.py",
    ("    supervisor.life.ask_to_end(run)", "    supervisor.life.ask_to_end(supervisor.runs[0])"),
)
SAME_ROOT = (
    "app/app_root.py",
    ('os.mkdir(directory + "/upper")', 'os.makedirs("/pod/of-" + app.name, exist_ok=True)'),
    ('directory + "/upper"', '"/pod/of-" + app.name'),
)
REMEMBERS = ("pod/app_changes.py", ("    supervisor.forget(run)\n", ""))


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., tuple[str, ImageManifest]]:
    """``broken(FILE, (OLD, NEW), …)``: the archive of a default stager with a file changed, and its manifest."""

    def build(
        name: str, *changes: tuple[str, str], annotation: dict[str, str] = CALL_INS
    ) -> tuple[str, ImageManifest]:
        modules = image.own_modules("inside")
        (source,) = [path for _, path in modules if path.endswith(f"/inside/{name}")]
        text = Path(source).read_text()
        for old, new in changes:
            assert old in text, f"{name} has no {old!r} any more"
            text = text.replace(old, new)
        changed = tmp_path / os.path.basename(name)
        changed.write_text(text)
        sources = [(one, str(changed) if at == source else at) for one, at in modules]
        rootfs = tmp_path / "rootfs"
        os.mkdir(rootfs)
        document = {**image.build(str(rootfs), sources), "annotations": [annotation]}
        with open(tmp_path / "stager.aci", "wb") as out:
            build_archive(str(rootfs), document, out)
        return str(tmp_path / "stager.aci"), ImageManifest.parse(document)

    return build


@pytest.mark.parametrize(
    ("mistake", "failed"),
    [
        pytest.param(
            WRONG_LAYERS,
            {"add": "/marks/both: base, and not top", "start": "/marks/both: base, and not top"},
            id="layers",
        ),
        pytest.param(STOPS_ANOTHER, {"stop": "", "start": "", "rm": ""}, id="stops-another"),
        pytest.param(SAME_ROOT, {"start": "/marks/both: written, and not top"}, id="same-root"),
        pytest.param(REMEMBERS, {"rm": "apps: ['late', 'main'], and not ['main']"}, id="remembers"),
    ],
)
def test_a_mistake_fails_its_lines(
    broken: Callable[..., tuple[str, ImageManifest]],
    lab: Callable[..., Lab],
    mistake: tuple[str, tuple[str, str]],
    failed: dict[str, str],
) -> None:
    archive, manifest = broken(*mistake)
    told: list[CheckLine] = []
    declared(lab(archive, Patience(start=4, stop=1, answer=3)), manifest, Report(told.append))
    lines = {line.name: line for line in told if line.name.startswith("changing.")}
    assert set(lines) == {f"changing.{verb}" for verb in ("add", "stop", "start", "rm")}
    assert {name for name, line in lines.items() if line.outcome == "fail"} == {
        f"changing.{verb}" for verb in failed
    }
    for verb, detail in failed.items():
        assert (lines[f"changing.{verb}"].detail or "").startswith(detail)


@pytest.mark.parametrize(
    ("mistake", "failed"),
    [
        pytest.param(("app/privileges.py", ("os.umask(plan.umask)", "pass")), {"umask", "run"}, id="umask"),
        pytest.param(
            ("app/process_settings.py", ("resource.setrlimit(_RLIMITS.index(name), (soft, hard))", "pass")),
            {"limits", "run", "refused"},
            id="limits",
        ),
        pytest.param(
            ("app/process_settings.py", ("_schedule(plan.scheduling)", "pass")),
            {"scheduling", "run"},
            id="scheduling",
        ),
        pytest.param(
            ("app/process_settings.py", ("_order_io(plan.io_priority)", "pass")),
            {"io-priority", "run"},
            id="io-priority",
        ),
        pytest.param(
            ("app/process_settings.py", ("_place(plan.memory_policy)", "pass")),
            {"memory-policy", "run"},
            id="memory-policy",
        ),
        pytest.param(
            ("pod/pod_cgroups.py", ("            for setting in plan.cgroup:", "            for setting in ():")),
            {"cgroup"},
            id="cgroup",
        ),
        pytest.param(("callins/run.py", ("privileges.apply_limits(app.plan)", "pass")), {"run"}, id="run"),
        pytest.param(("manifest.py", (", 1) > PLAN_VERSION", ", 1) > 10**9")), {"version"}, id="version"),
    ],
)
def test_a_plan_that_is_applied_in_part_fails_its_lines(
    broken: Callable[..., tuple[str, ImageManifest]],
    lab: Callable[..., Lab],
    mistake: tuple[str, tuple[str, str]],
    failed: set[str],
) -> None:
    """18: each setting of a plan has its line."""
    archive, manifest = broken(*mistake, annotation=ISOLATORS)
    told: list[CheckLine] = []
    declared(lab(archive, Patience(start=4, stop=1, answer=3)), manifest, Report(told.append))
    lines = {line.name.removeprefix("plan."): line for line in told if line.name.startswith("plan.")}
    assert {name for name, line in lines.items() if line.outcome == "fail"} == failed, lines
    assert {name for name, line in lines.items() if line.outcome == "ok"} == lines.keys() - failed
