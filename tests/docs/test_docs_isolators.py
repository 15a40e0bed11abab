"""``docs/reference/isolators.md`` is true: what its tables say is what the plugin compiles, on made-up machines.

``python tests/docs/test_docs_isolators.py`` writes them anew: the first one whole; of the second one, whose first
two columns are written by hand, the last column.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from kurma_isolators_linux import plugin
from kurma_isolators_linux.driver import ISOLATORS
from kurma_testing import load_driver

from kurma_core.errors import IsolatorError, ManifestError
from kurma_core.hookspecs.isolator import Compiled, IsolatorHooks, IsolatorHost
from kurma_core.json_text import dumps, loads
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.value import fields, replace
from tests.docs.isolator_hosts import HOSTS
from tests.docs.pages import find_page

DOCUMENT = find_page("isolators.md")
FIRST = "| isolator | of | value | example | on cgroup v1 | on cgroup v2 |"
SECOND = "| isolator | where | result |"


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    return load_driver(plugin, tmp_path / "driver")


# --- what a plan says, in words --------------------------------------------------------------------------------


def words(plan: IsolatorPlan) -> str:
    """Everything that the plan sets; nothing of it is left out."""
    parts = []
    for each in fields(IsolatorPlan):
        value = getattr(plan, each.name)
        if value == getattr(IsolatorPlan(), each.name):
            continue
        if each.name == "cgroup":
            parts += [f"`{setting.file}` {setting.value}" for setting in value]
        elif each.name in ("capabilities", "ambient"):
            which = "bounding set" if each.name == "capabilities" else "ambient for a plain user"
            parts.append(f"{which}: {' '.join(name.removeprefix('CAP_') for name in value) or 'empty'}")
        elif each.name == "seccomp":
            parts.append("a filter of system calls")
        elif each.name == "devices":
            parts += [f"`{d.path}` {d.kind} {d.major}:{d.minor} {d.access} {d.mode:04o}" for d in value]
        elif each.name == "traffic":
            parts += [f"{t.direction} {t.rate} bytes/s on {t.interface or 'every interface'}" for t in value]
        elif each.name == "mounts":
            parts += [f"`{m.target}` shows the host's `{m.source}`" for m in value]
        elif hasattr(value, "items"):
            parts += [f"`{key}` {found}" for key, found in value.items()]
        elif value is True:
            parts.append(f"`{each.name}`")
        else:
            parts.append(f"`{each.name}` {value}")
    return "; ".join(parts) or "nothing"


def outcome(driver: IsolatorHooks, name: str, value: Any, scope: str, host: IsolatorHost) -> str:
    try:
        compiled: Compiled = driver.compile(name, value, scope, host)
    except (IsolatorError, ManifestError) as error:
        return f"**refused**: {error}"
    said = f"{words(compiled.plan)}" + (f" ({compiled.amounts})" if compiled.amounts else "")
    if compiled.outcome == "enforced":
        return said
    return f"**{compiled.outcome}**: {compiled.note}" + (f"; {said}" if compiled.plan != IsolatorPlan() else "")


# --- the first table -------------------------------------------------------------------------------------------


def row(driver: Any, name: str, root: Path) -> str:
    about = driver.about(name)
    scope = about.scopes[0]
    cells = [f"`{name}`", ", ".join(about.scopes), about.value, f"`{dumps(about.example)}`"]
    for number, machine in enumerate(list(HOSTS)[:2]):
        cells.append(outcome(driver, name, about.example, scope, HOSTS[machine](root / str(number))))
    return line(cells)


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(text: str, heading: str) -> list[str]:
    """Rows below that heading."""
    assert text.count(heading + "\n") == 1, heading
    rows = []
    for found in text.split(heading + "\n")[1].splitlines()[1:]:
        if not found.startswith("|"):
            break
        rows.append(found)
    return rows


def test_every_isolator_is_there_and_becomes_what_is_said(driver: Any, tmp_path: Path) -> None:
    wanted = [row(driver, name, tmp_path / str(number)) for number, name in enumerate(sorted(ISOLATORS))]
    assert table(DOCUMENT.read_text(), FIRST) == wanted, "run python tests/docs/test_docs_isolators.py"


# --- the second table ------------------------------------------------------------------------------------------


def situation(text: str, root: Path) -> tuple[str, IsolatorHost]:
    """Scope and host of a cell such as ``cgroup v2; of the pod; pod: NAME=JSON; beside: NAME=JSON``."""
    scope, host = "app", HOSTS["cgroup v1"](root)
    for part in text.split("; "):
        kind, _, isolator = part.partition(": ")
        if part == "of the pod":
            scope = "pod"
        elif kind in ("pod", "beside"):
            name, value = isolator_of(isolator)
            host = replace(host, **{"pod" if kind == "pod" else "siblings": {name: value}})
        else:
            made = HOSTS[part](root)
            host = replace(made, pod=host.pod, siblings=host.siblings)
    return scope, host


def isolator_of(cell: str) -> tuple[str, Any]:
    name, _, value = cell.strip("`").partition("=")
    return name, loads(value)


def cells(found: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", found)[1:-1]]


def special(driver: Any, found: str, root: Path) -> str:
    isolator, where, _ = cells(found)
    name, value = isolator_of(isolator)
    scope, host = situation(where, root)
    return line([isolator, where, outcome(driver, name, value, scope, host)])


def test_what_is_modified_ignored_or_refused(driver: Any, tmp_path: Path) -> None:
    rows = table(DOCUMENT.read_text(), SECOND)
    wanted = [special(driver, found, tmp_path / str(number)) for number, found in enumerate(rows)]
    assert rows == wanted, "run python tests/docs/test_docs_isolators.py"
    # The table is of what is not plainly enforced.
    assert [found for found in rows if not re.search(r"\*\*(modified|ignored|refused)\*\*", found)] == []


def test_the_test_can_tell(driver: Any, tmp_path: Path) -> None:
    host = HOSTS["cgroup v1"](tmp_path)
    assert outcome(driver, "os/linux/no-new-privileges", True, "app", host) == "`no_new_privileges`"
    assert outcome(driver, "os/linux/no-new-privileges", 1, "app", host).startswith("**refused**: ")
    assert situation("cgroup v2; of the pod; beside: a=1; pod: b={}", tmp_path)[0] == "pod"
    assert situation("pod: b={}; cgroup v2", tmp_path)[1].pod == {"b": {}}


def _write() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        driver = load_driver(plugin, root / "driver")
        text = DOCUMENT.read_text()
        old = "\n".join([FIRST, "|---|---|---|---|---|---|", *table(text, FIRST)])
        rows = [row(driver, name, root / name) for name in sorted(ISOLATORS)]
        text = text.replace(old, "\n".join([FIRST, "|---|---|---|---|---|---|", *rows]))
        for number, found in enumerate(table(text, SECOND)):
            text = text.replace(found, special(driver, found, root / f"second-{number}"))
        DOCUMENT.write_text(text)


if __name__ == "__main__":
    _write()
