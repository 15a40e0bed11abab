"""The core names no plugin: its code holds no distribution, module, alias, entry or locator scheme of one.

The core knows plugins by entry points, by what they declare, and by the configuration. The default configuration
(``SCHEMA`` of ``config/schema.py``) is the one place that names plugins. Names are read from the projects of this
repository.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import pytest

from kurma_core.hookspecs import GROUPS
from kurma_core.plugins import contract
from tests.test_floors import CORE, EXAMPLES, LIBRARIES, PLUGINS, ROOT, imports, project, sources

#: Entries whose names are ordinary words: only a whole constant counts, and a locator.
ORDINARY = {"aci", "bridge", "copy", "default", "file", "http", "https", "linux", "lo", "overlay"}

SETTING = "a key or a column, or the origin of a value that no file sets"
PARAMETER = "a parameter of a command"
ENTRY = "the kind of a directory entry"
KERNEL = "the kernel's own name: a file system, a kind of link, an interface"
HTTP = "HTTP itself: of the specification's types, of kurmad, of the metadata service"
TRANSPORT = "a word of `transport`, which the contract of fetchers defines"
SLOT = "a slot of a class"
RELAXATION = "the relaxation `--insecure-options=http`"
NETWORK_KEY = "a key of the Kurma Network Specification"
SPECIFICATION = "a word of the App Container specification"
MODULE = "a module of the core"

#: (reason, names, files below kurma_core).
EXCEPTIONS = [
    (SETTING, "default", "api/describe.py api/operations.py cli/command_line.py cli/commands/network.py"),
    (SETTING, "default", "client/local/managers.py config/__init__.py config/schema.py value.py"),
    (SETTING, "default", "cli/commands/stager.py"),
    (PARAMETER, "file", "cli/commands/convert.py cli/commands/image.py cli/commands/image_archive.py"),
    (PARAMETER, "file", "cli/commands/stager.py"),
    (ENTRY, "file", "pods/inside/copy_files.py pods/inside/copy_source.py spawner/client.py spawner/root.py"),
    (ENTRY, "file", "stager_check/check_apps.py stager_check/check_callins.py stager_check/check_image.py"),
    (KERNEL, "overlay", "client/local/host_checks.py spawner/client.py spawner/root.py trees/overlay.py"),
    (KERNEL, "bridge", "linux/netlink.py"),
    (KERNEL, "default", "networking/interfaces.py"),
    (SLOT, "copy", "trees/merging.py"),
    (HTTP, "http", "api/describe.py daemon/http/exchange.py pods/run/pod_metadata.py"),
    (HTTP, "http https", "appc/types.py"),
    (HTTP, "https", "config/schema.py"),
    (RELAXATION, "http", "cli/values.py images/trust_policy.py"),
    (TRANSPORT, "file http https", "models/image.py"),
    (NETWORK_KEY, "aci", "config/__init__.py config/schema.py networking/catalog.py"),
    (SPECIFICATION, "linux", "appc/image.py"),
    (SPECIFICATION, "appc", "staging/stager_process.py"),
    (MODULE, "appc", "api/images.py api/pods.py hookspecs/fetcher.py"),
]


@dataclass(frozen=True)
class Names:
    """What no constant of the core may hold.

    :param distributions: names of distributions and their modules. :param aliases: what their drivers answer to.
    :param entries: names of entry points. :param schemes: those of fetchers. :param libraries: modules that only
        plugins depend on.
    """

    distributions: frozenset[str]
    aliases: frozenset[str]
    entries: frozenset[str]
    schemes: frozenset[str]
    libraries: frozenset[str]


@cache
def names():
    distributions, entries, schemes, aliases, libraries = set(), set(), set(), set(), set()
    for directory in [*PLUGINS, *LIBRARIES, *EXAMPLES]:
        described = project(directory)
        distributions |= {described["name"], described["name"].replace("-", "_")}
        libraries |= {requirement(text) for text in described.get("dependencies", ())}
        if directory in EXAMPLES:
            continue
        for group in GROUPS:
            found = described.get("entry-points", {}).get(group, {})
            entries |= set(found)
            schemes |= set(found) if group == "kurma.fetchers" else set()
            for name, value in found.items():
                aliases |= set(contract.declared(group, name, loaded(value)).aliases)
    extras = project(ROOT).get("optional-dependencies", {}).values()
    core = {requirement(text) for some in (project(ROOT)["dependencies"], *extras) for text in some}
    outside = {name.replace("-", "_") for name in libraries - core - distributions if not name.startswith("kurma")}
    return Names(*map(frozenset, (distributions, aliases, entries, schemes, outside)))


def requirement(text):
    return re.match(r"[\w.-]+", text).group()


def loaded(value):
    module, _, attribute = value.partition(":")
    found = import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


def any_of(words):
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def patterns():
    known = names()
    kinds = "plugin|fetcher|renderer|stager|network|isolator|observer|scheme"
    return [
        re.compile(rf"(?<![\w.%-])({any_of(known.schemes)}):(?=\S)"),
        re.compile(rf"\b(?:{kinds})s?[ `'\"]+({any_of(known.entries)})\b"),
        re.compile(rf"\b({any_of(known.entries)})[`'\"]? (?:plugin|fetcher|renderer)\b"),
        re.compile(rf"(?<![\w-])({any_of(known.entries - ORDINARY)})(?![\w-])", re.IGNORECASE),
    ]


def found_in(file, skipped=()):
    """The names in a file: names of distributions and aliases in every text; the others in texts that are no
    docstrings, and in the docstrings of commands, which are help texts.

    :param skipped: names of module variables whose values are not read.
    """
    known, tree = names(), ast.parse(file.read_text())
    left_out = {id(part) for node in tree.body if assigns(node, skipped) for part in ast.walk(node)}
    docstrings = set(documentation(tree))
    for item in imports(file):
        top = item.module.split(".")[0]
        if top in known.distributions | known.libraries:
            yield top
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in left_out:
            continue
        yield from (name for name in known.distributions | known.aliases if name in node.value)
        if id(node) in docstrings:
            continue
        if node.value in known.entries:
            yield node.value
        for pattern in patterns():
            yield from (match.group(1).lower() for match in pattern.finditer(node.value))


def assigns(node, variables):
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id in variables for target in targets)


def documentation(tree):
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        helps = any("command" in ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ()))
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and not helps:
            yield id(first.value)


def test_the_core_names_no_plugin():
    """Equal, so that what is no longer found leaves the list."""
    found = set()
    for file in sources(CORE):
        path = str(file.relative_to(CORE))
        skipped = {"SCHEMA"} if path == "config/schema.py" else ()
        found |= {(path, name) for name in found_in(file, skipped)}
    allowed = [(file, name) for _, words, files in EXCEPTIONS for file in files.split() for name in words.split()]
    assert len(allowed) == len(set(allowed))
    assert found == set(allowed)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import kurma_net_bridge.driver", "kurma_net_bridge"),
        ("def f():\n    from urllib3 import util", "urllib3"),
        ('"""Needs kurma-fetch-http."""', "kurma-fetch-http"),
        ('NAME = "apcera.com/kurma/lo-netplugin"', "apcera.com/kurma/lo-netplugin"),
        ('if scheme == "docker": pass', "docker"),
        ('def f(renderer="overlay"): pass', "overlay"),
        ('f"https://{host}"', "https"),
        ('HINT = "write oci-archive:FILE"', "oci-archive"),
        ('HINT = "install the plugin bridge"', "bridge"),
        ('HINT = "see the rkt documentation"', "rkt"),
        ('@command\ndef f():\n    """Fetches docker://NAME."""', "docker"),
    ],
)
def test_a_name_is_found(tmp_path, source, name):
    file = tmp_path / "module.py"
    file.write_text(source)
    assert name in set(found_in(file))


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """A file; with Docker, a name."""',
        'TEXT = "a file"',
        "SCHEMA = 'docker'",
    ],
)
def test_ordinary_text_is_not(tmp_path, source):
    file = tmp_path / "module.py"
    file.write_text(source)
    assert set(found_in(file, {"SCHEMA"})) == set()


def test_the_core_has_no_word_of_kubernetes():
    """C1: its service is a plugin like any other."""
    for file in (ROOT / "kurma_core").rglob("*.py"):
        assert not re.search("kube|grpc", file.read_text(), re.IGNORECASE), file


def test_the_configuration_names_plugins_as_defaults_of_these_keys():
    from kurma_core.config.schema import SCHEMA

    named = {key.name for key in SCHEMA if names().entries & set(values(key.default))}
    assert named <= {"renderer", "stager", "fetchers", "container_networks", "base_networks", "default_networks"}


def values(value):
    """The texts in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in values(item)] if isinstance(value, list) else [value]
