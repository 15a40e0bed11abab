"""What a run in the virtual machine comes to: nothing passes there that did not run."""

import subprocess
import sys

import pytest

from tests.vm import verdict
from tests.vm.failing import Failing

pytestmark = pytest.mark.full

_TESTS = """
import pytest

def test_good():
    pass

@pytest.fixture
def torn():
    yield
    assert {torn} != "torn"

def test_torn(torn):
    pass

def test_other():
    {body}
"""


def ran(directory, *, body="pass", torn="whole", options=()):
    """A real run of pytest, as in the machine: the record, and the exit status."""
    (directory / "results").mkdir(exist_ok=True)
    (directory / "test_some.py").write_text(_TESTS.format(body=body, torn=repr(torn)))
    plugin = ["-p", "tests.vm.ran", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "-c", "/dev/null", f"{directory}/test_some.py", *options],
        env={
            "KURMA_TEST_RECORD": f"{directory}/results/ran",
            "PYTHONDONTWRITEBYTECODE": "1",
            # Plugins that are installed are none of its business, and take a second.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
    )
    (directory / "results" / "exit").write_text(f"{done.returncode}\n")
    (directory / "output").write_text(done.stdout)
    return directory / "results"


def expected(directory):
    return sorted(verdict.record(ran(directory, options=["--collect-only"]) / "ran"))


def test_all_that_was_collected_has_passed(tmp_path):
    tests = expected(tmp_path)
    assert [test.partition("::")[2] for test in tests] == ["test_good", "test_other", "test_torn"]
    verdict.check(ran(tmp_path), tests)


@pytest.mark.full
@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"body": "assert False"}, "failed in the machine: .*test_other$"),
        ({"body": "pytest.skip('not here')"}, "skipped in the machine: .*test_other$"),
        ({"body": "pytest.xfail('not here')"}, "skipped in the machine: .*test_other$"),
        ({"torn": "torn"}, "failed in the machine: .*test_torn$"),
        ({"options": ["-k", "good"]}, "did not run in the machine: .*test_other, .*test_torn$"),
        ({"options": ["-x"], "body": "raise KeyboardInterrupt"}, "did not run in the machine: .*test_other"),
        ({"options": ["--collect-only"]}, "did not run in the machine: .*test_good"),
    ],
)
def test_what_did_not_pass_is_told(tmp_path, run, told):
    tests = expected(tmp_path)
    with pytest.raises(Failing, match=told):
        verdict.check(ran(tmp_path, **run), tests)


def test_an_exit_status_alone_counts(tmp_path):
    tests = expected(tmp_path)
    results = ran(tmp_path)
    (results / "exit").write_text("1\n")
    with pytest.raises(Failing, match="exit status 1 in the machine"):
        verdict.check(results, tests)


def test_no_record_and_no_tests(tmp_path):
    with pytest.raises(Failing, match="did not come to an end"):
        verdict.record(tmp_path / "nothing")
    with pytest.raises(Failing, match="no test is marked"):
        verdict.check(ran(tmp_path), [])


def test_a_failure_is_told_before_the_machine_falls(tmp_path):
    """What comes after it may take the whole machine, with pytest's own account."""
    results = ran(tmp_path, torn="torn", body="import os; os._exit(9)")
    assert not (results / "ran").exists()
    assert "assert 'torn' != 'torn'" in (tmp_path / "output").read_text()
