"""Kurma beside its peers on this machine: ``./dev bench [NAME…] [--rounds N] [--json | --markdown]``.

See docs/explanation/benchmarks.md. Absolute times move from machine to machine: compare the ratios, which come
from one run.
"""

from __future__ import annotations

import argparse
import json
import sys

import host
import report
from cases import CASES, Bench, Figure
from measuring import BenchError, Conditions


def main() -> int:
    options = _options()
    work = host.enter()
    conditions = Conditions.now()
    _note(str(conditions))
    figures: list[Figure] = []
    failed = 0
    try:
        bench = Bench(work, options.rounds, _note)
    except BenchError as error:
        _note(f"cannot be set up: {error}")
        return 1
    for name in options.names or CASES:
        _note(name)
        try:
            figures += CASES[name](bench)
        except BenchError as error:
            _note(f"{name}: {error}")
            failed = 1
        bench.clear()
    if options.json:
        print(json.dumps(report.document(conditions, figures), indent=1))
    else:
        print((report.markdown if options.markdown else report.text)(conditions, figures))
    return failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="one of " + ", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=11, help="runs of each side that count (11)")
    parser.add_argument("--json", action="store_true", help="print every value")
    parser.add_argument("--markdown", action="store_true", help="print the table of benchmarks.md")
    options = parser.parse_args()
    for name in options.names:
        if name not in CASES:
            parser.error(f"no case {name!r}: there is {', '.join(CASES)}")
    return options


def _note(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
