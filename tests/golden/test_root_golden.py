"""Golden files: what commands print as JSON, what the API answers, and what errors carry, in both transports.

They hold the values that cross the socket while the code behind them is rebuilt. After a change that is meant:

    KURMA_GOLDEN=write ./dev test tests/golden

and the difference of the files is read line by line.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.acceptance.conftest import fresh, shared
from tests.kit.command import Kurma
from tests.kit.waiting import until

__all__ = ["fresh", "shared"]

pytestmark = pytest.mark.root

FILES = Path(__file__).parent
WRITE = os.environ.get("KURMA_GOLDEN") == "write"
#: Values that differ from one run or machine to the next, by the last part of their path.
VOLATILE = re.compile(
    r"""(^|\.)(pid|innerPid|parent|stagerPid|stagerVersion|owner|uptime|clock|cpu|elapsed|memory|memoryReclaimable|memoryLimit|pids
    |pidsLimit|blockRead|blockWritten|networkReceived|networkSent|size|archiveSize|rendered|bytes|free|freed|used|total|port|hostPort|fd|mtime|ctime|inode
    |kernel|kernelVersion|release|process|python|cpus|capabilities|machine|hostname|mac|interval|threads|state_dir
    |available|features|controllers|entries|version|loaded)$""",
    re.VERBOSE,
)
PATTERNS = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "uuid"),
    (re.compile(r"\bsha512-[0-9a-f]{8,128}"), "image"),
    (re.compile(r"\bsha(256|512):[0-9a-f]{32,128}"), "digest"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "time"),
    (re.compile(r"\b[0-9A-Fa-f]{40}\b"), "fingerprint"),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"), "mac"),
    (re.compile(r"\bkv[0-9a-f]{8,}\b|\bkurma-[0-9a-f]{6,}\b"), "interface"),
    (re.compile(r"\bfd[0-9a-f]{2}:[0-9a-f:]+(/\d+)?"), "address"),
    (re.compile(r"\b172\.\d+\.\d+\.\d+|\b10\.\d+\.\d+\.\d+"), "address"),
    (re.compile(r"\b[0-9a-f]{32,128}\b"), "hex"),
)


class Plain:
    """Replaces what differs from run to run by names, the same name for the same thing."""

    def __init__(self, *directories: Path) -> None:
        self._directories = [str(each) for each in directories]
        self._known: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def text(self, text: str) -> str:
        for number, directory in enumerate(self._directories):
            text = text.replace(directory, f"<directory {number}>")
        for pattern, kind in PATTERNS:
            text = pattern.sub(lambda found, kind=kind: self._name(kind, found.group()), text)
        return text

    def _name(self, kind: str, found: str) -> str:
        if kind == "time":
            return "<time>"
        if found not in self._known:
            self._count[kind] = self._count.get(kind, 0) + 1
            self._known[found] = f"<{kind} {self._count[kind]}>"
        return self._known[found]

    def value(self, value: Any, path: str = "") -> Any:
        if isinstance(value, dict):
            return {self.text(key): self.value(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            if all(isinstance(item, dict) and "uuid" in item and "name" in item for item in value):
                # Their order is that of UUIDs.
                value = sorted(value, key=lambda item: item["name"])
            return [self.value(item, path) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return "<number>" if VOLATILE.search(path) else value
        if isinstance(value, str):
            return "<text>" if VOLATILE.search(path) else self.text(value)
        return value

    def lines(self, text: str) -> Any:
        """JSON, JSON lines, or lines of text."""
        for read in (json.loads, lambda text: [json.loads(line) for line in text.splitlines()]):
            try:
                return self.value(read(text))
            except ValueError:
                continue
        return [self.text(line) for line in text.splitlines()]


def compare(name: str, found: Any) -> None:
    file = FILES / f"{name}.json"
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if WRITE:
        file.write_text(text)
    else:
        differences = list(differing(json.loads(file.read_text()), found))
        assert not differences, "\n".join(differences[:20])


def differing(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two documents differ, and how, a line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from differing(before.get(key, "(not there)"), after.get(key, "(not there)"), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            at = pair[0]["command"] if isinstance(pair[0], dict) and "exit" in pair[0] else index
            yield from differing(*pair, f"{path}[{at}]")
    elif before != after:
        yield f"{path}: {json.dumps(before)[:300]} became {json.dumps(after)[:300]}"


#: Label and words, in the order in which they run. Errors are among them: exit code and text are kept.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("list", "--format", "json"),
    ("image", "fetch", "{image}"),
    ("image", "list", "--format", "json"),
    ("image", "show", "example.com/busybox", "--format", "json"),
    ("image", "cat-manifest", "example.com/busybox"),
    ("image", "render", "example.com/busybox", "--format", "json"),
    ("image", "verify", "{image}", "--format", "json"),
    ("prepare", "--name", "made", "--net", "none", "--memory", "64Mi", "-e", "A=b", "--tmpfs", "/t", "{image}"),
    ("show", "made", "--format", "json"),
    ("cat-manifest", "made"),
    ("rm", "made"),
    ("run", "--name", "ended", "--net", "none", "{image}", "--", "-c", "echo out; echo err >&2; exit 3"),
    ("logs", "ended"),
    ("logs", "ended", "--format", "json"),
    ("wait", "ended"),
    ("show", "ended", "--format", "json"),
    ("status", "ended", "--format", "json"),
    ("run", "-d", "--name", "up", "{image}", "--", "-c", "echo up; exec sleep 1000"),
    ("list", "--format", "json"),
    ("show", "up", "--format", "json"),
    ("status", "up", "--format", "json"),
    ("app", "list", "up", "--format", "json"),
    ("stats", "up", "--format", "json", "--no-stream"),
    ("top", "up", "--format", "json"),
    ("enter", "up", "--", "sh", "-c", "echo inside; exit 4"),
    ("app", "add", "--name", "more", "--start", "up", "{image}", "--", "-c", "exec sleep 1000"),
    ("app", "list", "up", "--format", "json"),
    ("app", "stop", "up", "more"),
    ("app", "rm", "up", "more"),
    ("network", "list", "--format", "json"),
    ("network", "show", "default", "--format", "json"),
    ("network", "check", "--format", "json"),
    ("stop", "up"),
    ("show", "up", "--format", "json"),
    ("trust", "list", "--format", "json"),
    ("stager", "list", "--format", "json"),
    ("plugins", "list", "--here", "--format", "json"),
    ("plugins", "show", "networks/bridge", "--format", "json"),
    ("config", "show", "--format", "json"),
    ("config", "check"),
    # What goes wrong
    ("show", "nothing"),
    ("run", "/no/such.aci"),
    ("run", "example.invalid:"),
    ("run", "--net", "nowhere", "{image}"),
    ("run", "--memory", "much", "{image}"),
    ("run", "--stager", "none-such", "{image}"),
    ("run", "--renderer", "none-such", "{image}"),
    ("run", "--name", "ended", "{image}"),
    ("run", "--rm", "--net", "none", "{image}", "--exec", "/none"),
    ("run", "--rm", "--net", "none", "{image}", "--exec", "/etc"),
    ("run", "--isolator", "os/linux/oom-score-adj=x", "{image}"),
    ("run", "-v", "/no/such:/srv", "{image}"),
    ("run", "-p", "x", "{image}"),
    ("enter", "ended"),
    ("attach", "ended"),
    ("app", "start", "ended", "more"),
    ("stop", "nothing"),
    ("kill", "ended"),
    ("rm", "nothing"),
    ("cp", "nothing:/x", "/tmp/x"),
    ("logs", "ended/nothing"),
    ("image", "show", "nothing"),
    ("image", "rm", "example.com/busybox"),
    ("image", "show", "sha512-00000000"),
    ("image", "validate", "/no/such.aci"),
    ("trust", "rm", "0123456789"),
    ("network", "show", "nothing"),
    ("plugins", "show", "networks/nothing"),
    ("stager", "build", "nothing"),
    ("run", "--no-such-option"),
    ("no-such-command",),
    ("rm", "ended", "up"),
    ("image", "rm", "example.com/busybox"),
    ("image", "gc", "--format", "json"),
    ("network", "rm", "default"),
    ("list", "--format", "json"),
    # Other words for commands
    ("create", "--name", "made", "--net", "none", "{image}", "sh", "-c", "exit"),
    ("ps", "-q"),
    ("inspect", "nothing"),
    ("network", "inspect", "default"),
    ("exec", "made"),
    ("exec", "made/nothing", "ls", "-l"),
    ("rmm", "made"),
    ("rum", "made"),
    ("push", "made"),
)


@pytest.mark.parametrize("way", ["local", "kurmad"])
def test_commands(fresh: Kurma, tmp_path: Path, way: str) -> None:
    """What each command prints, and its exit code: the same in both ways."""
    plain = Plain(fresh.state, Path(fresh.image).parent, tmp_path)
    fresh.out("stager", "build", "default")
    found = []
    with contextlib.ExitStack() as stack:
        if way == "kurmad":
            stack.enter_context(daemon(fresh))
        for index, words in enumerate(COMMANDS):
            said = [fresh.image if word == "{image}" else word for word in words]
            # What outlives its command is kurmad's in any case.
            by = ("--host", "local") if way == "local" and "-d" not in said else ()
            done = fresh(*by, *said)
            found.append(
                {
                    "command": f"{index}: kurma {' '.join(words)}",
                    "exit": done.returncode,
                    "stdout": plain.lines(done.stdout),
                    "stderr": plain.lines(done.stderr),
                }
            )
    compare("commands", found)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("kurmad", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


@contextlib.contextmanager
def daemon(kurma: Kurma) -> Iterator[str]:
    """A kurmad on that state directory. :yields: its socket."""
    process = kurma.popen("daemon", "run", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = str(kurma.state / "run/kurmad.sock")
    try:
        until(lambda: os.path.exists(path), "kurmad's socket")
        yield path
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def kurmad(fresh: Kurma) -> Iterator[str]:
    """A daemon on a state directory with one pod that runs and one that has ended. Its socket."""
    fresh.out("image", "fetch", fresh.image)
    with daemon(fresh) as path:
        fresh.out("run", "-d", "--name", "up", "--net", "none", fresh.image, "--", "-c", "exec sleep 1000")
        fresh("run", "--name", "ended", "--net", "none", fresh.image, "--", "-c", "exit 3")
        fresh("secret", "create", GOOD["secret"], "-", input="hunter2")
        yield path


def ask(path: str, method: str, target: str, body: Any = None) -> dict[str, Any]:
    connection = UnixConnection(path)
    try:
        text = None if body is None else body if isinstance(body, str) else json.dumps(body)
        # An error may be answered before the body was sent.
        with contextlib.suppress(BrokenPipeError):
            connection.request(method, target, text, {"Content-Type": "application/json"} if text else {})
        answer = connection.getresponse()
        return {"status": answer.status, "type": answer.headers.get_content_type(), "text": answer.read().decode()}
    finally:
        connection.close()


GOOD = {"pod": "up", "app": "busybox", "image": "example.com/busybox", "network": "default", "stager": "default"}
GOOD |= {"kind": "networks", "name": "bridge", "key": "0123", "answer": "none"}
GOOD |= {"secret": "db-password", "volume": "data"}
#: They last until something happens.
ENDLESS = ("/v1/events", "/wait", "/logs", "/attach", "/enter", "/stats")

#: What they answer is as the machine is.
OF_THE_HOST = ("/v1/info", "/v1/info/checks", "/v1/isolators")


def test_the_api(fresh: Kurma, tmp_path: Path, kurmad: str) -> None:
    """Its description; what each operation that only looks answers; and what each answers to wrong requests."""
    plain = Plain(fresh.state, Path(fresh.image).parent, tmp_path)
    document = json.loads(ask(kurmad, "GET", "/v1/openapi.json")["text"])
    document["info"]["version"] = "<version>"
    compare("openapi", document)
    found: dict[str, Any] = {}
    for path, methods in sorted(document["paths"].items()):
        for method in sorted(set(methods) & {"get", "post", "put", "delete"}):
            good = re.sub(r"\{(\w+)\}", lambda name: GOOD[name.group(1)], path)
            bad = re.sub(r"\{\w+\}", "no-such-thing", path)
            tries = [("unknown parameter", f"{good}?no-such-parameter=1", None)]
            if method == "get" and not path.endswith((*ENDLESS, *OF_THE_HOST)):
                tries.append(("good", good, None))
            if bad != path:
                tries.append(("unknown thing", bad, None))
            if "requestBody" in methods[method]:
                tries += [("no JSON", good, "{"), ("no object", good, [1]), ("unknown key", good, {"no-such": 1})]
                tries.append(("doubled key", good, '{"a": 1, "a": 2}'))
            for label, target, body in tries:
                said = ask(kurmad, method.upper(), target, body)
                text = said.pop("text")
                said["body"] = plain.lines(text) if said["type"] == "application/json" else "<bytes>"
                found[f"{method.upper()} {path}: {label}"] = said
    compare("api", found)
