"""``./dev fuzz [TARGET] [SECONDS]``: runs targets under libFuzzer, guided by what they cover.

The corpus is kept in ``.dev/fuzz/corpus``, what was found in ``.dev/fuzz/found``. Ends with status 1 if there is
anything found.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / ".dev" / "fuzz"
_SECONDS = 60
#: Longest input, bytes; memory of the whole process, MiB; seconds that one input may take.
_MOST_BYTES, _MOST_MEMORY, _MOST_SECONDS = 40_000, 1500, 20


def fuzz(name: str, seconds: int, here: Path = HERE, seed: int | None = None) -> tuple[bool, str]:
    """Runs one target. :returns: whether it held, and a line about it."""
    from tests.fuzz.targets import HIDDEN, TARGETS

    seeds = {**TARGETS, **HIDDEN}[name][1]
    corpus, found = here / "corpus" / name, here / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    words: set[str] = set()
    for number, content in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(content)
        words.update(re.findall(r"[A-Za-z][A-Za-z0-9./-]{2,40}", content.decode("latin-1")))
    dictionary = here / f"{name}.dict"
    dictionary.write_text("".join(f'"{word}"\n' for word in sorted(words)[:400]))
    chosen = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    command = [sys.executable, "-m", "tests.fuzz.one", name, str(corpus), f"-artifact_prefix={found}/{name}-"]
    command += [f"-max_total_time={seconds}", f"-seed={chosen}", f"-max_len={_MOST_BYTES}", f"-dict={dictionary}"]
    command += [
        f"-rss_limit_mb={_MOST_MEMORY}",
        f"-timeout={_MOST_SECONDS}",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    begun = time.monotonic()
    # libFuzzer ends without a word to Python: what a target has made is removed here.
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    # What a killed target has mounted in it goes with the mount namespace.
    with tempfile.TemporaryDirectory(dir=shared, ignore_cleanup_errors=True) as scratch:
        environment = {**os.environ, "TMPDIR": scratch}
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment
        )
    output = result.stdout + result.stderr
    took = time.monotonic() - begun
    count = (re.findall(r"stat::number_of_executed_units:\s*(\d+)", output) or ["?"])[-1]
    covered = (re.findall(r"ft: (\d+)", output) or ["?"])[-1]
    line = f"fuzz {name}: {count} inputs in {took:.0f} s, {covered} features, seed {chosen}"
    if result.returncode == 0:
        return True, line
    where = (re.findall(r"Test unit written to (\S+)", output) or ["(no input was kept)"])[-1]
    return False, f"{line}: FOUND {where}\n{_interesting(output)}"


def _interesting(output: str) -> str:
    """The trace of what was found."""
    at = output.find("Uncaught Python exception")
    lines = output[at if at >= 0 else -4000 :].splitlines()
    return "\n".join(line[:300] for line in lines[:40])


def main(arguments: list[str]) -> int:
    from tests.fuzz.targets import TARGETS

    names = [word for word in arguments if not word.isdigit()]
    seconds = next((int(word) for word in arguments if word.isdigit()), _SECONDS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        print(f"fuzz: no target {unknown[0]}; there are: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    held = True
    for name in names or TARGETS:
        good, line = fuzz(name, seconds)
        print(line, flush=True)
        held = held and good
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
