"""``kurma stager check``: stagers that hold, and stagers that are broken in one way each (G8)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kurma_core.api.host import CheckLine
from kurma_core.errors import StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.stager_check.pods import Lab, app
from kurma_core.stager_check.report import LINES, Report
from tests.integration.stager_check.conftest import Checked
from tests.kit.command import KURMA
from tests.kit.waiting import alive, until

if TYPE_CHECKING:
    from kurma_core.client import Client

pytestmark = pytest.mark.root


def kurma(state: Path, *words: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*KURMA, "--dir", str(state), "--config", str(config or os.devnull), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "kurma.json"
    file.write_text("{}")
    return file


def test_the_default_stager(state: Path, nothing: Path) -> None:
    done = kurma(state, "stager", "check", "default", "--format", "json", config=nothing)
    lines = {line["name"]: line for line in json.loads(done.stdout)}
    assert done.returncode == 0, [line for line in lines.values() if line["outcome"] == "fail"]
    assert list(lines) == list(LINES)
    assert {line["outcome"] for line in lines.values()} == {"ok"}, "the default one does all of it"
    assert {line["detail"] for line in lines.values()} == {None}
    assert kurma(state, "list", "--no-legend", config=nothing).stdout == ""


@pytest.mark.full
def test_descriptor_4_that_the_stager_holds(example: Callable[..., str], checked: Callable[..., Checked]) -> None:
    found = checked(example("stager_shell", ("init", "exec 4>&- 5<&- #", "exec 5<&- #")))
    assert found.failed.keys() == {"start.descriptor-4"}
    assert "(the stager)" in found.failed["start.descriptor-4"]
    assert found.lines["app.user"].detail == "no pod runs under this stager"


@pytest.mark.full
def test_descriptor_4_that_an_app_holds(example: Callable[..., str], checked: Callable[..., Checked]) -> None:
    leaky = ("init", "(exec 4>&- 5>&-; watch", "(exec 5>&-; watch")
    found = checked(example("stager_shell", leaky))
    assert found.failed.keys() == {"start.descriptor-4"}
    assert "(the stager)" not in found.failed["start.descriptor-4"]
    assert "(unshare -m -p -i" in found.failed["start.descriptor-4"]
    assert re.search(r" and \d+ more", found.failed["start.descriptor-4"])


ONE_APP = ("init", "next=0 apps=\n", "get /pod/apps/1/name && die 'only pods of one app'\nnext=0 apps=\n")


def test_a_stager_of_one_app(example: Callable[..., str], checked: Callable[..., Checked]) -> None:
    """18: it says so, and is checked by pods of one app; lines about several are skipped with that reason."""
    notes = [{"name": "kurma.io/stager/apps", "value": "1"}]
    found = checked(example("stager_shell", ONE_APP, annotations=notes))
    assert found.failed == {}
    of_several = {
        "status.exited",
        "end.two-apps",
        "changing.add",
        "changing.stop",
        "changing.start",
        "changing.rm",
    }
    assert {found.lines[name].detail for name in of_several} == {"the stager takes pods of 1 app at most"}
    checked_by_one = {"app.arguments", "app.user", "app.network", "status.killed", "status.kept", "end.exit-code"}
    assert checked_by_one | {"stop.signal", "end.left-behind", "layers.order", "run.where"} <= found.of("ok")


@pytest.mark.full
def test_a_stager_of_one_app_that_does_not_say_so(
    example: Callable[..., str], checked: Callable[..., Checked]
) -> None:
    """18."""
    found = checked(example("stager_shell", ONE_APP))
    assert "only pods of one app" in found.failed["start.descriptor-4"]
    assert "says so by the annotation kurma.io/stager/apps" in found.failed["start.descriptor-4"]


def test_an_annotation_that_is_no_number(example: Callable[..., str], checked: Callable[..., Checked]) -> None:
    """18."""
    notes = [{"name": "kurma.io/stager/apps", "value": "0"}]
    with pytest.raises(StagerError, match=r"annotation kurma\.io/stager/apps .*: not a number from 1 on"):
        checked(example("stager_shell", annotations=notes))


@pytest.mark.full
def test_each_mistake_is_named(example: Callable[..., str], checked: Callable[..., Checked]) -> None:
    """Mistakes that do not touch: each fails its own lines, and none else."""
    archive = example(
        "stager_shell",
        ("init", "lower=$lower${lower:+:}/lower/$app.$count", "lower=/lower/$app.$count${lower:+:}$lower"),
        ("init", "\tsignal TERM\n", ""),
        ("init", "\tcode=$?\n", "\tcode=0\n"),
        ("init", "handler post-stop </dev/null &", ": &"),
        ("init", "exec 5<&0 </dev/null\n", "exec 5<&0 </dev/null 9</dev/null\n"),
        ("run", 'awk -f /opt/stager/json.awk <&3 >"$file"', "sleep 1000"),
        ("logs", "*) die", "--stream) shift ;; *) die"),
        annotations=[
            {"name": f"kurma.io/stager/{name}", "value": "true"} for name in ("userns", "waits", "forks")
        ],
    )
    found = checked(archive)
    assert found.failed.keys() == {
        "userns.apps",
        "userns.run",
        "waits.pod",
        "forks.pod",
        "layers.order",
        "stop.signal",
        "handlers.order",
        "handlers.stop",
        "start.descriptors",
        "run.document",
        "logs.stream",
        "status.exited",
        "status.killed",
        "status.kept",
        "end.exit-code",
        "end.start-failure",
    }
    assert found.failed["status.exited"] == "seven ended with 7; its exitCode: 0, and not 7"
    assert found.failed["end.exit-code"] == "exit code of the pod: 0, and not 5"
    assert found.failed["userns.apps"] == "main is in the host's user namespace"
    assert "wait" in found.failed["waits.pod"]
    assert found.failed["layers.order"] == "/marks/both: base, and not top"
    assert found.failed["start.descriptors"] == "open in main: [0, 1, 2, 9], and not [0, 1, 2]"
    assert "did not read its document within 4 s" in found.failed["run.document"]
    assert (
        found.failed["handlers.order"] == "ran: ['pre-start', 'main'], and not ['pre-start', 'main', 'post-stop']"
    )
    assert "--stream stderr prints" in found.failed["logs.stream"]


def test_a_status_that_is_garbage(example: Callable[..., str], lab: Callable[[str], Lab]) -> None:
    """Control characters, and more of them than anybody would read: told in a line, in no time."""
    garbage = ("status", "comma=\n", "while :; do printf '\\033[31m\\a\\000garbage\\n'; done\n")
    told: list[CheckLine] = []
    report = Report(told.append)
    started = time.monotonic()
    with lab(example("stager_shell", garbage)).pod({"main": app("main", "serve")}) as pod:
        main = pod.probe("main")
        for name in ("status.running", "status.exited", "status.killed"):
            with report.line(name):
                pod.status()
        main.tell("exit", 3)
        # The stager, too, puts together what it keeps from that; it is not asked.
        assert pod.owned.stager.alive()
    assert time.monotonic() - started < 15
    assert [line.outcome for line in told] == ["fail"] * 3
    assert {line.detail for line in told} == {
        "the stager is wrong: its status call-in has more than 1048576 bytes"
    }


def test_an_image_that_may_not_run(
    example: Callable[..., str], client: Callable[..., Client], state: Path, tmp_path: Path
) -> None:
    archive = example("stager_shell")
    client()
    done = kurma(state, "stager", "check", archive, config=tmp_path / "kurma.json")
    assert done.returncode == 1
    first, second, *_, last = done.stdout.splitlines()
    assert first.startswith("FAIL  image.signature ")
    assert second.startswith("--    image.dependencies ")
    assert second.endswith(": the image is not run")
    assert last == f"0 hold, 1 do not, {len(LINES) - 1} were skipped"


def test_an_image_with_dependencies(example: Callable[..., str], checked: Callable[..., Checked]) -> None:
    found = checked(example("stager_shell", dependencies=[{"imageName": "example.com/other"}]))
    assert found.failed.keys() == {"image.dependencies"}


def under_way(state: Path, config: Path, stager: str = "default") -> tuple[subprocess.Popen[str], str]:
    """A check, and the UUID of the pod that it has made."""
    command = [*KURMA, "--dir", str(state), "--config", str(config), "stager", "check", stager]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "layers.order" in line:
            break
    (uuid,) = [name for name in os.listdir(state / "pods") if name != "names" and not name.startswith(".")]
    return process, uuid


def nothing_of(state: Path, uuid: str, namespaces: set[str]) -> None:
    assert {name for name in os.listdir(state / "pods") if name != ".ids"} == {"names"}
    assert os.listdir(state / "pods" / "names") == []
    assert not CgroupTree(f"kurma/{uuid}").exists()
    assert network_namespaces() == namespaces


def network_namespaces() -> set[str]:
    return set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set()


@pytest.mark.full
def test_a_check_that_is_killed_leaves_what_gc_takes(
    example: Callable[..., str], client: Callable[..., Client], state: Path, tmp_path: Path
) -> None:
    """Also under a stager that would never end by itself, though its apps have."""
    archive = example("stager_shell", ("init", "exec 4>&- 5<&- #", "exec 4>&- 5<&-; sleep 1000 #"))
    client(archive)
    before, config = network_namespaces(), tmp_path / "kurma.json"
    process, uuid = under_way(state, config, archive)
    stager = json.loads((state / "pods" / uuid / "state.json").read_text())["stager"]["pid"]
    process.kill()
    process.communicate(timeout=20)
    until(lambda: not alive(stager), "the stager's end")
    assert kurma(state, "gc", "--grace-period", "0", config=config).returncode == 0
    nothing_of(state, uuid, before)


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_check_that_is_interrupted_leaves_nothing(state: Path, nothing: Path, number: int, code: int) -> None:
    before = network_namespaces()
    process, uuid = under_way(state, nothing)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == code, said
    assert "Traceback" not in said
    nothing_of(state, uuid, before)


def test_a_stager_that_is_no_image_or_not_there(state: Path, nothing: Path, tmp_path: Path) -> None:
    done = kurma(state, "stager", "check", "/no/such.aci", config=nothing)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("kurma: ")
    assert kurma(state, "stager", "check", "", config=nothing).returncode == 2


def test_a_file_that_is_no_image_gets_no_line(state: Path, nothing: Path, tmp_path: Path) -> None:
    """It is nothing whose signature could hold."""
    path = tmp_path / "words.aci"
    path.write_text("words\n")
    done = kurma(state, "stager", "check", str(path), config=nothing)
    assert (done.returncode, done.stdout) == (125, "")
    assert "not an image archive" in done.stderr
