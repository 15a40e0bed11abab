"""Every value that has a JSON form, each with all its keys."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

import pytest

import kurma_core.api
import kurma_core.models
from kurma_core import schema
from kurma_core.errors import KurmaError
from kurma_core.models.pod import AppExecution
from kurma_core.schema import JsonValue, SchemaError, members
from kurma_core.value import frozen

MODULES = [
    importlib.import_module(f"{package.__name__}.{one.name}")
    for package in (kurma_core.models, kurma_core.api)
    for one in pkgutil.iter_modules(package.__path__)
]
KINDS = sorted(
    {
        one
        for module in MODULES
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, JsonValue) and one is not JsonValue
    },
    key=lambda kind: (kind.__module__, kind.__name__),
)
MANIFESTS = {
    "ImageManifest": {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "a"},
    "PodTemplate": {"apps": [{"name": "a", "image": "x.aci"}]},
}


#: What the fields that depend on each other hold; None: they are left out.
INSTEAD = {
    "AppOverrides": {
        "ports": [{"name": "a", "protocol": "tcp", "port": 80}],
        "mountPoints": [{"name": "m", "path": "/m"}],
        "eventHandlers": [{"name": "pre-start", "exec": ["a"]}],
    },
    "IsolatorPlan": {"rlimits": {"nofile": [1, 2]}},
    "MemoryPolicy": {"nodes": "0", "relative": None},
    "Scheduling": {"policy": "deadline", "priority": None, "runtime": 1, "deadline": 2, "period": 3},
}


def sample(shape: Any) -> Any:
    """A JSON value that fits; never null."""
    match shape:
        case schema.Maybe():
            return sample(shape.inner)
        case schema.Text():
            return next(text for text in ("/a", "A", "00ff00ff00ff00ff", "0", "127.0.0.1") if fits(shape, text))
        case schema.Whole():
            return max(shape.least or 0, 1)
        case schema.Words():
            return shape.words[0]
        case schema.List():
            return [sample(shape.inner)]
        case schema.Row():
            return [sample(one) for one in shape.shapes]
        case schema.Map():
            return {"k": sample(shape.inner)}
        case schema.Keys():
            return {key: sample(one) for key, one in shape.shapes.items()}
        case schema.Pairs():
            return [dict(zip(shape.keys, map(sample, shape.shapes), strict=True))]
        case schema.Parsed():
            return MANIFESTS[shape.kind.__name__]
        case schema.Object():
            return {"k": document(shape.kind)} if shape.by else document(shape.kind)
        case schema.Flag():
            return True
        case schema.Number():
            return 1.5
    return {"any": [1, None]}


def fits(shape: Any, text: str) -> bool:
    try:
        shape.read(text, "$")
    except (ValueError, KurmaError):
        return False
    return True


def document(kind: type[JsonValue]) -> dict[str, Any]:
    found = {}
    for one in members(kind):
        if one.name not in kind.COMPUTED:
            found.update({one.key: sample(one.shape)} if one.key else sample(one.shape))
    found.update(INSTEAD.get(kind.__name__, {}))
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.NAMED_BY], ids=lambda kind: kind.__name__)
def test_a_full_value_is_written_as_it_is_read(kind: type[JsonValue]) -> None:
    full = document(kind)
    value = kind.from_json(full)
    written = json.loads(json.dumps(value.to_json()))
    assert written.keys() >= full.keys()
    assert kind.from_json(written) == value


@frozen
class WithCore(AppExecution):
    """As if a field were added to executions: this is all there is to be done."""

    core_dumped: bool


def test_a_new_field_of_a_value_is_declared_once() -> None:
    full = {**document(AppExecution), "coreDumped": True}
    assert WithCore.from_json(full).to_json() == full
    with pytest.raises(SchemaError, match=r"^x\.coreDumped: expected true or false, found 1$"):
        WithCore.from_json({**full, "coreDumped": 1}, "x")
    with pytest.raises(SchemaError, match=r"^x\.coreDumped is missing$"):
        WithCore.from_json(document(AppExecution), "x")
