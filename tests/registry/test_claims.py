"""18: a name that two plugins claim, or a plugin and Kurma itself, is told in one way, whatever the name is."""

from __future__ import annotations

import re
import textwrap

import pytest

from kurma_core.errors import PluginCollisionError
from kurma_core.plugins.problems import problems_of_plugins

HOOKS = {
    "isolators": ["compile(self)"],
    "networks": [f"{name}(self)" for name in ("setup", "add", "delete", "check", "remove")],
    "fetchers": ["resolve(self)"],
    "renderers": ["render(self)"],
    "commands": ["application(self)"],
    "services": ["serve(self)"],
    "observers": ["pod_event(self)"],
}


def source(kind: str, declared: str = "") -> str:
    """A plugin that does nothing. :param declared: further arguments of its ``Driver``."""
    if kind == "isolators" and "isolators=" not in declared:
        declared += "isolators=(__name__,)"
    methods = "".join(f"    @hookimpl\n    def {hook}: raise AssertionError\n" for hook in HOOKS[kind])
    head = """
        from kurma_core.hookspecs import hookimpl
        from kurma_core.hookspecs.driver import Driver

        class Made:
            def __init__(self, context): pass
    """
    hook = f"@hookimpl\ndef kurma_{kind.removesuffix('s')}():\n    return Driver(Made, {declared})\n"
    return f"{textwrap.dedent(head)}{methods}\n{hook}"


BOTH = "{kind} plugin 'aa' of kurma-aa 1.0 and {kind} plugin 'zz' of kurma-zz 1.0"
#: What two plugins claim: their kind, what they declare, what the message calls it, and the use of the name.
DECLARED = [
    ("isolators", "isolators=('example.com/x',)", "isolator example.com/x", None),
    (
        "networks",
        "aliases=('example.com/x',)",
        "network alias 'example.com/x'",
        lambda found: found.resolve_alias("kurma.networks", "example.com/x"),
    ),
    ("networks", "runs_images=True", "the running of images", lambda found: found.image_runner("kurma.networks")),
    ("fetchers", "annotations=('example.com/x/',)", "annotation prefix 'example.com/x/'", None),
]


@pytest.fixture
def told(registry):
    """What ``config check`` and ``plugins list`` tell of collisions: messages, and (name, status) by reason."""

    def told(text: str = "plugins: {networks: {aci: {enabled: false}}}"):
        found = registry(text)
        problems = problems_of_plugins(found, found._config)
        assert all(isinstance(problem, PluginCollisionError) for problem in problems)
        rows = registry(text).listing()
        messages = [problem.message for problem in problems]
        reasons = {row.reason for row in rows if " is claimed by " in row.reason}
        assert reasons == set(messages)
        return messages, {(row.name, row.status) for row in rows if row.reason in reasons}

    return told


@pytest.mark.parametrize(("kind", "declared", "what", "use"), DECLARED, ids=[one[2] for one in DECLARED])
def test_a_name_that_two_plugins_declare(install, registry, told, kind, declared, what, use):
    for name in ("aa", "zz"):
        install(f"kurma-{name}", {name: source(kind, declared)}, group=f"kurma.{kind}")
    message = f"{what} is claimed by {BOTH.format(kind=kind.removesuffix('s'))}"
    assert told() == ([message], {("aa", "ok"), ("zz", "ok")})
    if use is not None:
        with pytest.raises(PluginCollisionError, match=f"^{re.escape(message)}$"):
            use(registry("plugins: {networks: {aci: {enabled: false}}}"))
    off = f"plugins: {{networks: {{aci: {{enabled: false}}}}, {kind}: {{zz: {{enabled: false}}}}}}"
    if kind == "networks":
        off = "plugins: {networks: {aci: {enabled: false}, zz: {enabled: false}}}"
    assert told(off) == ([], set())


def test_a_prefix_of_annotations_within_another(install, told):
    install("kurma-aa", {"aa": source("fetchers", "annotations=('example.com/x/',)")}, group="kurma.fetchers")
    install("kurma-zz", {"zz": source("fetchers", "annotations=('example.com/',)")}, group="kurma.fetchers")
    assert told()[0] == [f"annotation prefix 'example.com/x/' is claimed by {BOTH.format(kind='fetcher')}"]


def test_plugins_of_one_distribution_share_annotations(install, told):
    mine = source("fetchers", "annotations=('example.com/x/',)")
    install("kurma-aa", {"aa": mine, "zz": mine}, group="kurma.fetchers")
    assert told() == ([], set())


@pytest.mark.parametrize("kind", sorted(HOOKS))
def test_a_name_of_two_distributions(install, told, kind):
    """Of fetchers, it is a scheme; of commands, a word."""
    for distribution in ("kurma-aa", "kurma-zz"):
        install(distribution, {"same": source(kind)}, group=f"kurma.{kind}")
    enabled = "plugins: {services: {same: {enabled: true}}}" if kind == "services" else ""
    message = f"{kind.removesuffix('s')} plugin 'same' is claimed by kurma-zz 1.0 and kurma-aa 1.0"
    assert told(enabled) == ([message], {("same", "failed")})


@pytest.mark.parametrize(
    ("kind", "name"), [("commands", "list"), ("commands", "ps"), ("fetchers", "upload"), ("fetchers", "built")]
)
def test_a_name_of_kurmas_own(install, told, kind, name):
    install("kurma-aa", {name: source(kind)}, group=f"kurma.{kind}")
    message = f"{kind.removesuffix('s')} plugin '{name}' is claimed by kurma-aa 1.0 and Kurma itself"
    assert told() == ([message], {(name, "failed")})
