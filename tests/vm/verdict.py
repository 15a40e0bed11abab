"""What the run in the machine comes to. Every test that was to run there must have, and must have passed."""

from tests.vm.failing import Failing

_TOLD = 10


def record(path):
    """Outcome by test, as :mod:`tests.vm.ran` wrote it. :raises Failing: it wrote nothing."""
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise Failing("pytest did not come to an end in the machine (its output is above)") from None
    return {test: outcome for outcome, _, test in (line.partition(" ") for line in lines)}


def check(results, expected):
    """
    :param results: the directory that the machine wrote.
    :param expected: IDs of the tests that were to run.
    :raises Failing: one did not run, was skipped, or failed; or none was to run.
    """
    if not expected:
        raise Failing("no test is marked vm among these")
    with open(f"{results}/exit") as file:
        status = int(file.read())
    outcomes = record(f"{results}/ran")
    for word, tests in (
        ("did not run", [test for test in expected if outcomes.get(test, "collected") == "collected"]),
        ("skipped", [test for test, outcome in outcomes.items() if outcome == "skipped"]),
        ("failed", [test for test, outcome in outcomes.items() if outcome == "failed"]),
    ):
        if tests:
            more = f" and {len(tests) - _TOLD} more" if len(tests) > _TOLD else ""
            raise Failing(f"{word} in the machine: {', '.join(sorted(tests)[:_TOLD])}{more}")
    if status:
        raise Failing(f"pytest ended with exit status {status} in the machine (its output is above)")
