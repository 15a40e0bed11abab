"""A pytest plugin that writes down what was collected and how each test ended: to the file $KURMA_TEST_RECORD.

One test a line, ``OUTCOME ID``; with ``--collect-only`` the outcome is ``collected``.
"""

import os

_seen = {}


def pytest_collection_finish(session):
    for item in session.items:
        _seen[item.nodeid] = "collected"


def pytest_runtest_logreport(report):
    if report.failed:
        # At once: a machine that hangs later tells no more.
        print(f"\n{report.longreprtext}\n{report.capstdout}{report.capstderr}", flush=True)
    worse = report.when == "call" or report.outcome != "passed"
    if worse and _seen.get(report.nodeid) != "failed":
        _seen[report.nodeid] = report.outcome


def pytest_sessionfinish():
    with open(os.environ["KURMA_TEST_RECORD"], "w") as file:
        file.writelines(f"{outcome} {test}\n" for test, outcome in _seen.items())
