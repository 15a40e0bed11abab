"""The core names no plugin: its code holds no distribution, module, alias, entry or locator scheme of one.

The core knows plugins by entry points, by what they declare, and by the configuration. The default configuration
(the defaults of the keys in ``config/schema.py``) is the one place that names plugins. Names are read from the
projects of this repository, and looked for in imports and in every constant, documentation included.
"""

import ast
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import pytest

from kurma_core.hookspecs import GROUPS
from kurma_core.plugins import contract
from tests.test_floors import CORE, EXAMPLES, LIBRARIES, PLUGINS, ROOT, imports, project, sources

#: Entries whose names are ordinary words: they count alone, in a locator, and beside a kind of plugin.
ORDINARY = {
    "aci",
    "bridge",
    "build",
    "copy",
    "default",
    "down",
    "file",
    "http",
    "https",
    "linux",
    "lo",
    "overlay",
    "up",
}

#: (reason, name, files below kurma_core, each with the number of places unless it is one).
EXCEPTIONS = [
    (
        "a key or a column",
        "default",
        "api/describe.py api/operations.py cli/command_line.py cli/commands/network.py:2",
    ),
    ("a key or a column", "default", "cli/commands/stager.py value.py"),
    ("a key `default`, the origin of a value that no file sets, a hint", "default", "config/__init__.py:10"),
    ("the origin of a value that no file sets", "default", "cli/commands/plugins.py client/local/managers.py:7"),
    ("a part of an option's declaration", "default", "plugins/contract.py"),
    ("prose: what holds by default", "default", "hookspecs/isolator.py networking/manager.py"),
    ("prose: what holds by default", "default", "api/host.py:2 config/schema.py:4"),
    ("a kind of trust policy", "file", "config/schema.py"),
    ("a kind of trust policy", "http", "config/schema.py"),
    ("a kind of trust policy; how not to write a host", "https", "config/schema.py:2"),
    ("a parameter of a command", "file", "cli/commands/convert.py cli/commands/image.py cli/commands/stager.py"),
    ("a parameter of a command", "file", "cli/commands/image_archive.py"),
    ("`image build`, `stager build`, and a step", "build", "cli/commands/__init__.py:4 cli/commands/stager.py"),
    ("`image build`, `stager build`, and a step", "build", "cli/suggestions.py images/host_images.py"),
    ("the kind of a directory entry", "file", "pods/inside/copy_files.py:4 pods/inside/copy_source.py"),
    ("the kind of a directory entry", "file", "spawner/client.py spawner/root.py"),
    ("a command of the check's program", "file", "stager_check/check_apps.py:3 stager_check/check_callins.py:3"),
    ("a command of the check's program", "file", "stager_check/check_image.py:4"),
    ("the kernel's file system", "overlay", "client/local/host_checks.py:3 trees/overlay.py:4"),
    ("the kernel's file system", "overlay", "spawner/client.py spawner/root.py"),
    ("the kernel's kind of link", "bridge", "linux/netlink.py:3"),
    ("the kernel's flag of an interface", "up", "linux/netlink.py"),
    ("the kernel's interface", "lo", "linux/namespaces.py"),
    ("a directory of the kernel's settings of interfaces", "default", "networking/interfaces.py"),
    (
        "the mark of a default entry in the text of an access control list",
        "default",
        "image_store/extended_headers.py",
    ),
    ("a slot of a class", "copy", "trees/merging.py"),
    ("HTTP itself: kurmad's own, and the metadata service's", "http", "api/describe.py daemon/http/exchange.py"),
    ("HTTP itself: kurmad's own, and the metadata service's", "http", "metadata/http.py pods/run/pod_metadata.py"),
    ("HTTP itself: requests of health checks", "http", "cli/health_options.py:5 models/health.py:3"),
    ("HTTP itself: requests of health checks", "https", "cli/health_options.py models/health.py"),
    ("HTTP itself: requests of health checks", "https", "pods/inside/network_checks.py"),
    ("a URL as the App Container specification has it", "http", "appc/types.py"),
    ("a URL as the App Container specification has it", "https", "appc/types.py"),
    ("the relaxation `--insecure-options=http`", "http", "cli/completion.py cli/values.py images/trust_policy.py"),
    ("the address of an archive on this host", "file", "cli/completion_names.py cli/output.py"),
    ("a word of `transport`, which the contract of fetchers defines", "file", "models/image.py"),
    ("a word of `transport`, which the contract of fetchers defines", "http", "models/image.py"),
    ("a word of `transport`, which the contract of fetchers defines", "https", "models/image.py"),
    (
        "a key of the Kurma Network Specification",
        "aci",
        "config/__init__.py:4 config/schema.py:3 networking/catalog.py",
    ),
    ("an operating system of the App Container specification", "linux", "appc/image.py:2"),
    ("an annotation that the App Container specification names", "appc", "staging/stager_process.py"),
    (
        "the specification of network results, which the Kurma Network Specification cites",
        "cni",
        "appc/cni_result.py:3",
    ),
    ("the specification of layers, which images of every fetcher follow", "oci", "hookspecs/fetcher.py"),
    ("the specification of layers, which images of every fetcher follow", "oci", "image_store/archive_layout.py"),
    ("another product, whose notation is also read", "rkt", "api/network_options.py"),
    ("the text format of logs, which Kubernetes has defined", "cri", "formats/cri_log.py:2 pods/inside/logs.py:2"),
    ("the specification of network plugins, whose arguments a request may hold", "cni", "models/network.py:2"),
    ("a prefix of annotations of the App Container specification", "appc", "pods/change/annotate.py"),
    ("the kernel's counters of memory, and its file system", "file", "pods/inside/usage_details.py"),
    ("the kernel's counters of memory, and its file system", "overlay", "pods/inside/usage_details.py"),
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


@cache
def patterns():
    """Each finds a name in a text as its only group; the text may also be documentation."""
    known = names()
    kinds = r"(?:plugin|fetcher|renderer|stager|network|isolator|observer|service|scheme|driver)s?"
    return [
        re.compile(f"({any_of(known.distributions | known.aliases)})"),
        re.compile(rf"(?<![\w.%-])({any_of(known.schemes)}):(?=\S|$)"),
        re.compile(rf"\b{kinds}(?:[ `'\"]+|\W*[:=]\W*)({any_of(known.entries)})\b"),
        re.compile(rf"(?<![\w.-])({any_of(known.entries)})[`'\"]* {kinds}\b"),
        re.compile(rf"(?<![\w.-])({any_of(known.entries - ORDINARY)})(?![\w-])", re.IGNORECASE),
    ]


def found_in(file):
    """The names in a file, each as often as it occurs: in imports, and in constants (bytes, parts of f-strings and
    documentation included) except the defaults of keys of the configuration.

    :param file: the source.
    """
    known, tree = names(), ast.parse(file.read_text())
    left_out = {id(part) for node in ast.walk(tree) for default in defaults(node) for part in ast.walk(default)}
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for item in imports(file):
        top = item.module.split(".")[0]
        if top in known.distributions | known.libraries:
            yield top
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in left_out:
            continue
        text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        if not isinstance(text, str):
            continue
        if text in known.entries and id(node) not in documentation:
            yield text
            continue
        places = {match.span(1) for pattern in patterns() for match in pattern.finditer(text)}
        yield from (text[first:end].lower() for first, end in places)


def defaults(node):
    """The value of ``Key(NAME, SHAPE, DEFAULT, …)``: kurma.yml names plugins, and so does what stands for it."""
    return node.args[2:3] if isinstance(node, ast.Call) and ast.unparse(node.func) == "Key" else ()


def test_the_core_names_no_plugin():
    """Equal counts, so that a new place is found in a file with exceptions, and what is gone leaves the list."""
    found = Counter((str(file.relative_to(CORE)), name) for file in sources(CORE) for name in found_in(file))
    allowed = Counter()
    for _, name, files in EXCEPTIONS:
        for file, _, number in (entry.partition(":") for entry in files.split()):
            assert (file, name) not in allowed
            allowed[file, name] = int(number or 1)
    assert found == allowed


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import kurma_net_bridge.driver", "kurma_net_bridge"),
        ("def f():\n    from urllib3 import util", "urllib3"),
        ("import_module('kurma_net_bridge.driver')", "kurma_net_bridge"),
        ('"""Needs kurma-fetch-http."""', "kurma-fetch-http"),
        ('NAME = "apcera.com/kurma/lo-netplugin"', "apcera.com/kurma/lo-netplugin"),
        ('if scheme == "docker": pass', "docker"),
        ('if scheme == b"bridge": pass', "bridge"),
        ('if scheme in ("file", other): pass', "file"),
        ('match scheme:\n    case "linux": pass', "linux"),
        ('def f(renderer="overlay"): pass', "overlay"),
        ('f"https://{host}"', "https"),
        ('f"file:{path}"', "file"),
        ('text.startswith("http:")', "http"),
        ('text.startswith(b"docker://")', "docker"),
        ('HINT = "write oci-archive:FILE"', "oci-archive"),
        ('HINT = "install the plugin bridge"', "bridge"),
        ('HINT = "join the bridge network"', "bridge"),
        ('HINT = "install the linux isolators"', "linux"),
        ('HINT = "write plugins: {networks: {bridge: {}}}"', "bridge"),
        ('HINT = "see the rkt documentation"', "rkt"),
        ('HINT = "/etc/cni/net.d"', "cni"),
        ('@command\ndef f():\n    """Fetches docker://NAME."""', "docker"),
        ('def f():\n    """A bare path comes as ``file:///…``."""', "file"),
        ('def f():\n    """A Docker image."""', "docker"),
        ('Key("a", "text", None, "the name of a Docker registry")', "docker"),
    ],
)
def test_a_name_is_found(tmp_path, source, name):
    file = tmp_path / "module.py"
    file.write_text(source)
    assert set(found_in(file)) == {name}


@pytest.mark.parametrize(
    "source",
    [
        'TEXT = "a file, by default: over http"',
        "from kurma_core.appc.pod import Pod",
        '"""See :mod:`kurma_core.appc.pod`."""',
        'Key("fetcher", "text", "docker", "the fetcher")',
        'Key("networks", "list", [{"name": "lo"}], "networks")',
    ],
)
def test_ordinary_text_is_not(tmp_path, source):
    file = tmp_path / "module.py"
    file.write_text(source)
    assert list(found_in(file)) == []


def test_each_place_counts(tmp_path):
    """So a comparison beside an exception of the same file is found."""
    file = tmp_path / "module.py"
    file.write_text('KEYS = ("default",)\nif name == "default": pass')
    assert list(found_in(file)) == ["default", "default"]


def test_the_core_has_no_word_of_kubernetes():
    """C1: its service is a plugin like any other. The default configuration names the package of a command."""
    for file in (ROOT / "kurma_core").rglob("*.py"):
        text = file.read_text().replace('"commands/kube": "kurma-kube"', "")
        assert not re.search("kube|grpc", text, re.IGNORECASE), file


def test_the_configuration_names_plugins_as_defaults_of_these_keys():
    from kurma_core.config.schema import SCHEMA

    named = {key.name for key in SCHEMA if names().entries & set(values(key.default))}
    assert named <= {"renderer", "stager", "fetchers", "container_networks", "base_networks", "default_networks"}


def project_groups():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]


def test_the_configuration_names_the_package_of_each_default_plugin():
    from kurma_core.config.schema import ALL_DEFAULT, SCHEMA

    (plugins,) = (key for key in SCHEMA if key.name == "plugins")
    (packages,) = (key.default for key in plugins.keys if key.name == "packages")
    defaults = project_groups()["plugins"]
    entries = {
        f"{group.removeprefix('kurma.')}/{name}": described["name"]
        for described in map(project, PLUGINS)
        if described["name"] in defaults
        for group in GROUPS
        for name in described.get("entry-points", {}).get(group, ())
    }
    assert packages == entries
    assert project(ROOT / "packaging/kurma")["name"] == ALL_DEFAULT


def values(value):
    """The texts in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in values(item)] if isinstance(value, list) else [value]
