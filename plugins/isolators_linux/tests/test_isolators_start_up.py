"""What a pod without an isolator waits for: every run loads this plugin, for its defaults."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
# Modules that a run loads before it compiles isolators, and the compiler itself.
import kurma_core.isolation
import kurma_core.pods.manager
import kurma_core.pods.prepare
import kurma_core.plugins.registry
from kurma_core.config import load
before = set(sys.modules)
from kurma_isolators_linux import plugin
from kurma_core.isolation import IsolatorPlugin, compile_isolators, host_facts
declared = plugin.kurma_isolator()
driver = declared.create(None)
linux = IsolatorPlugin(declared.isolators, lambda: driver, declared.default_isolators, declared.exclusive)
host = host_facts({"cpu": 1, "memory": 1, "pids": 1}, shared=frozenset({"user"}))
done = compile_isolators((), {"web": ()}, (linux,), host)
assert {report.name for report in done.reports} >= {"kurma.io/pids-limit"}
assert all(report.default for report in done.reports)
print(*sorted(set(sys.modules) - before))
"""
#: The families that the defaults are of, and what they need.
OURS = {
    *("", ".plugin", ".driver", ".processes", ".capabilities", ".sysctls", ".system_calls"),
    *(".seccomp_profile", ".seccomp_bpf"),
}


def test_only_what_the_defaults_need_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    core = {"kurma_core.linux.capabilities", "kurma_core.hookspecs.isolator"}
    assert loaded == {*core, *(f"kurma_isolators_linux{name}" for name in OURS)}
