"""The same Docker images, from one registry, run by Kurma and by podman: what a program finds, and how it ends.

``python bench/compare_podman.py [--markdown | --json] [TEXT…]``: all variants, or those whose name has a TEXT.
docs/reference/differences.md holds what ``--markdown`` prints. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import host
import oci
import variants
from measuring import BenchError
from runtimes import Kurma, Podman, output
from variants import VARIANTS, Variant

Facts = Mapping[str, str]
_ABSENT = "—"
_STARTED = 20.0  # seconds
_CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One variant's facts, by side."""

    variant: Variant
    kurma: Facts
    podman: Facts

    def differences(self, usual: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
        """:param usual: pairs that are known already, and left out."""
        ours, theirs = "argv" in self.kurma, "argv" in self.podman
        if ours != theirs:
            return [("", _runs(self.kurma), _runs(self.podman))]
        found = []
        for name in dict.fromkeys((*self.kurma, *self.podman)):
            pair = (self.kurma.get(name, _ABSENT), self.podman.get(name, _ABSENT))
            if pair[0] != pair[1] and not _known(pair, usual.get(name)):
                found.append((name, *pair))
        return found


def _known(pair: tuple[str, str], usual: tuple[str, str] | None) -> bool:
    """What only one of them has is known whatever it holds."""
    if usual is None or pair == usual:
        return pair == usual
    return any(pair[side] == usual[side] == _ABSENT for side in (0, 1))


def _runs(facts: Facts) -> str:
    return f"runs, in {facts['working directory']}" if "argv" in facts else "does not run"


class Comparison:
    """Both runtimes, and the registry that they fetch from."""

    def __init__(self, work: str) -> None:
        self._work = work
        self.kurma = Kurma(work)
        self.podman = Podman(work)
        self._layer = oci.layer(variants.root(work))
        self._count = 0

    def of(self, variant: Variant, registry: oci.Registry) -> Compared:
        self._count += 1
        layout = f"{self._work}/layout-{self._count}"
        oci.write_layout(layout, self._layer, variant.config)
        reference = registry.push(layout, f"variant-{self._count}")
        name = f"compared-{self._count}"
        ours = [self.kurma.program, "run", "--rm", "--name", name, *variant.kurma]
        ours += ["--pull", "always", *([] if variant.network else ["--net", "none"]), f"docker://{reference}"]
        ours += ["--", *variant.arguments] if variant.arguments else []
        options = ["--name", name, "--tls-verify=false", "--quiet", *variant.podman]
        options += [] if variant.network else ["--network", "none"]
        theirs = self.podman.run(*options, image=reference, command=variant.arguments)
        return Compared(
            variant,
            self._facts(variant, ours, self.kurma.environment, [self.kurma.program, "stop", name]),
            self._facts(variant, theirs, self.podman.environment, self.podman.words("stop", name)),
        )

    def _facts(self, variant: Variant, argv: list[str], environment: Mapping[str, str], stop: list[str]) -> Facts:
        """Runs it to its end, and reads what it printed."""
        out, err = f"{self._work}/out", f"{self._work}/err"
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen(
                argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
            )
            try:
                if variant.stop:
                    _wait_up(out, process)
                    output(stop, environment)
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise BenchError(f"{variant.name}: {' '.join(argv)}: does not end") from None
        return {"exit code": str(code), **_read(out, err)}


def _wait_up(path: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _STARTED
    while time.monotonic() < until and process.poll() is None:
        with open(path, "rb") as file:
            if b"up\n" in file.read():
                return
        time.sleep(0.05)
    raise BenchError("the program to be stopped has not come up")


def _read(out: str, err: str) -> dict[str, str]:
    """Facts, with what is different at each run replaced by what it is."""
    facts: dict[str, str] = {}
    with open(out, errors="replace") as file:
        text = file.read()
    if "\t" not in text:
        facts["standard output"] = repr(text)
        with open(err, errors="replace") as file:
            said = "".join(line for line in file if "is spoken to over plain http" not in line)
        # Messages are each one's own; only what the app itself wrote counts.
        facts["standard error"] = "a message" if re.search(r"(?m)^(kurma:|Error:)", said) else repr(said)
        return facts
    for line in text.splitlines():
        name, _, value = line.partition("\t")
        facts[name] = _usual(name, value)
    return facts


def capabilities(mask: str) -> str:
    """The names in a mask as /proc/PID/status shows it."""
    bits = int(mask, 16)
    return " ".join(word for number, word in enumerate(_CAPABILITIES) if bits >> number & 1) or "none"


def _usual(name: str, value: str) -> str:
    if name.startswith("Cap"):
        return capabilities(value)
    value = re.sub(r"\b[0-9a-f]{12}\b", "ID", value)
    value = re.sub(r"\b(compared|variant)-\d+\b", "NAME", value)
    value = re.sub(r"^(http://[\d.]+:\d+)/[0-9a-f]{32,}$", r"\1/TOKEN", value)
    value = re.sub(r"\b10\.\d+\.\d+\.\d+\b", "ADDRESS", value)
    # Podman has this line once there is a bridge, whatever the container's network.
    return value.replace("ADDRESS host.containers.internal;", "").strip()


# --- telling ---------------------------------------------------------------------------------------------------


def markdown(results: list[Compared]) -> str:
    """Two parts: the first variant in full, then what is different in the others besides that."""
    first = results[0]
    usual = {name: (ours, theirs) for name, ours, theirs in first.differences({})}
    same = [name for name in first.kurma if name not in usual]
    lines = [f"### In every container ({first.variant.name})", "", *_table(first.differences({})), ""]
    lines += ["The same: " + ", ".join(same) + ".", "", "### By image and option", ""]
    lines += ["| | exit code | otherwise than above |", "|---|---|---|"]
    for result in results[1:]:
        found = result.differences(usual)
        ours, theirs = result.kurma["exit code"], result.podman["exit code"]
        codes = ours if ours == theirs else f"**{ours}; podman {theirs}**"
        words = "<br>".join(
            f"{name + ': ' if name else ''}{_cell(mine)}; podman: {_cell(other)}"
            for name, mine, other in found
            if name != "exit code"
        )
        lines.append(f"| {result.variant.name} | {codes} | {words or 'the same'} |")
    return "\n".join(lines)


def _table(rows: list[tuple[str, str, str]]) -> list[str]:
    head = ["| | kurma | podman |", "|---|---|---|"]
    return head + [f"| {name} | {_cell(ours)} | {_cell(theirs)} |" for name, ours, theirs in rows]


def _cell(text: str) -> str:
    return text if text == _ABSENT else f"`{text.replace('|', chr(0xA6))}`" if text else "empty"


def plain(results: list[Compared]) -> str:
    first = results[0]
    usual = {name: (ours, theirs) for name, ours, theirs in first.differences({})}
    lines = []
    for result in results:
        lines.append(f"{result.variant.name}: exit code {result.kurma['exit code']}, {result.podman['exit code']}")
        for name, ours, theirs in result.differences({} if result is first else usual):
            lines += [f"  {name}", f"    kurma   {ours}", f"    podman  {theirs}"]
    return "\n".join(lines)


def main() -> int:
    options = _options()
    work = host.enter()
    with open("/etc/hosts", "w") as file:  # the private host's
        file.write("127.0.0.1 localhost\n192.0.2.1 neighbour\n")
    chosen = [VARIANTS[0], *(one for one in VARIANTS[1:] if not options.text or _matches(one, options.text))]
    comparison = Comparison(work)
    results = []
    try:
        with oci.Registry(work) as registry:
            for variant in chosen:
                print(f"compare: {variant.name}", file=sys.stderr, flush=True)
                results.append(comparison.of(variant, registry))
    except BenchError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    finally:
        comparison.podman.remove_all()
    if options.json:
        print(
            json.dumps([{"name": r.variant.name, "kurma": r.kurma, "podman": r.podman} for r in results], indent=1)
        )
    else:
        print((markdown if options.markdown else plain)(results))
    return 0


def _matches(variant: Variant, texts: list[str]) -> bool:
    return any(text.lower() in variant.name.lower() for text in texts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=os.path.basename(__file__), description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("text", metavar="TEXT", nargs="*", help="only variants whose name has it")
    parser.add_argument("--markdown", action="store_true", help="print the tables of differences.md")
    parser.add_argument("--json", action="store_true", help="print every fact")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
