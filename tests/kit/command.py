"""``kurma`` as users have it: the installed command, a process of its own, on a state directory of the tests'."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

#: The script that installing Kurma makes.
PROGRAM = os.path.join(os.path.dirname(sys.executable), "kurma")
#: Its words so far, for tests that add theirs.
KURMA = (PROGRAM,)
#: Files whose coming tells of no pod: locks, and what is chosen once per state directory.
_QUIET = re.compile(
    r"(^|/)(lock|[^/]*\.lock)$"
    r"|^networks(/names\.json|/pods)?$"
    r"|^plugins\.json$"
    r"|^plugins/kurma\.networks/bridge/choices(/default\.json)?$"
    r"|^plugins(/kurma\.networks(/bridge(/networks(/default(/network\.json|/addresses(/last\.[46])?|/ports)?)?)?)?)?$"
)


class Kurma:
    """The command with a state directory and a configuration.

    :param config: what stands in ``kurma.json``.
    :param image: path of an image archive of busybox.
    :param program: the script that installing Kurma makes, perhaps in another environment.
    """

    def __init__(self, state: Path, config: Path, image: str, program: str = PROGRAM) -> None:
        self.program = program
        self.state = state
        self.config = config
        self.image = image
        self.environment = {**os.environ, "KURMA_DIR": str(state), "KURMA_CONFIG": str(config)}

    @property
    def directory(self) -> Path:
        """Where its configuration is, and what a test puts beside it."""
        return self.config.parent

    def configured(self, file: Path, **values: Any) -> Kurma:
        """The same state directory with another configuration."""
        file.write_text(json.dumps(values))
        return Kurma(self.state, file, self.image, self.program)

    def __call__(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Runs it to its end. :param more: for ``subprocess.run``; ``timeout`` is 60 seconds."""
        environment = {**self.environment, **more.pop("env", {})}
        if "input" not in more:
            more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [self.program, *words],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=more.pop("timeout", 60),
            **more,
        )

    def out(self, *words: str, **more: Any) -> str:
        """Standard output of a command that must succeed."""
        done = self(*words, **more)
        assert done.returncode == 0, f"kurma {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.out(*words, "--format", "json"))

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([self.program, *words], text=True, env=self.environment, **more)

    def run(self, script: str, *options: str, net: str | None = "none") -> subprocess.CompletedProcess[str]:
        """``kurma run --rm`` of a shell script, by an image whose app is ``/bin/sh``."""
        nets = () if net is None else ("--net", net)
        return self("run", "--rm", *nets, *options, self.image, "--", "-c", script)

    def pod(self, reference: str) -> Any:
        return self.json("show", reference)

    def traces(self) -> set[str]:
        """Everything by which a pod, an image or a half-done fetch can be seen in the state directory, and the
        processes that work on it."""
        found = set()
        for directory, names, files in os.walk(self.state):
            for name in [*names, *files]:
                path = os.path.relpath(os.path.join(directory, name), self.state)
                if not _QUIET.search(path):
                    found.add(path)
        return found | self._processes()

    def _processes(self) -> set[str]:
        # A kurmad that a command started has the directory in its arguments.
        marks = {"environ": f"KURMA_DIR={self.state}\0".encode(), "cmdline": f"--dir\0{self.state}\0".encode()}
        found = set()
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            for name, mark in marks.items():
                try:
                    with open(f"/proc/{pid}/{name}", "rb") as file:
                        if mark in file.read():
                            found.add(f"process {pid}")
                except OSError:
                    continue
        return found


def one_line(done: subprocess.CompletedProcess[str], *said: str, code: int = 125, hint: str | None = None) -> None:
    """The command failed with one line that says all of ``said``, at most a hint after it, and nothing else.

    :param hint: what the hint must say; None: it may be missing.
    """
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines, "it said nothing"
    assert lines[0].startswith("kurma: "), done.stderr
    assert "internal error" not in lines[0], done.stderr
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("  hint: ")), done.stderr
    for word in said:
        assert word.lower() in lines[0].lower(), done.stderr
    if hint is not None:
        assert len(lines) == 2, done.stderr
        assert hint in lines[1], done.stderr


def sha512(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha512").hexdigest()
