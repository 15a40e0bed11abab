"""What every test of this checkout begins with."""

from __future__ import annotations

import signal

import pytest

from kurma_core.linux.files import spread

pytest_plugins = ["tests.kit.fixtures", "tests.sharing", "tests.tiers"]


def pytest_configure(config: pytest.Config) -> None:
    _hear_signals()
    config.pluginmanager.register(_ToldAtOnce(config))
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings
        from kurma_testing.graphs import examples

        # How long one example takes is the machine's business: on a busy one, any may take long.
        settings.register_profile("kurma", deadline=None, max_examples=examples(25))
        settings.load_profile("kurma")


class _ToldAtOnce:
    """Prints why a test failed when it fails: a run that is cut off prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or report.outcome not in ("failed", "rerun"):
            return
        terminal.ensure_newline()
        terminal.write_line(f"{report.nodeid}: {report.when} {report.outcome} after {report.duration:.0f} s")
        terminal.write_line(report.longreprtext[-4000:])
        terminal.flush()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints why tests failed that ran again (``--reruns``): whether they passed then or not."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"{report.nodeid} failed and ran again", "=", red=True)
        report.toterminal(terminalreporter._tw)


@pytest.fixture(scope="session", autouse=True)
def _spread_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each test's files are made in a part of the disk of their own: others have just removed some."""
    spread(str(tmp_path_factory.getbasetemp()))


def _hear_signals() -> None:
    """Programs that the tests start hear signals, even where we were started to ignore them (``nohup``, or a
    script's ``&``). To catch one is enough: a program that is exec'd begins with its default. Ctrl-C we hear, too.
    """
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
