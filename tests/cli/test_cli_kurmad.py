"""``kurmad`` is ``kurma daemon run``, with the options of both."""

import pytest

from kurma_core.cli.command_line import parse
from kurma_core.cli.commands.daemon import sorted_words


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ([], ["daemon", "run"]),
        (["--help"], ["daemon", "run", "--help"]),
        (["--version"], ["--version", "daemon", "run"]),
        (["--dir", "/d"], ["--dir", "/d", "daemon", "run"]),
        (["--log-format", "json", "--dir=/d"], ["--dir=/d", "daemon", "run", "--log-format", "json"]),
        (
            ["--idle-timeout", "5s", "--config", "/c", "--debug"],
            ["--config", "/c", "--debug", "daemon", "run", "--idle-timeout", "5s"],
        ),
        (["--log-level", "info", "--debug", "--dir"], ["--debug", "--dir"]),
        (["more"], ["daemon", "run", "more"]),
    ],
)
def test_the_same_in_any_order(words, same):
    assert sorted_words(words) == same


def test_a_value_that_is_missing_is_told(capsys):
    from kurma_core.cli.main import main

    assert main(["--dir"], program=sorted_words) == 2
    assert capsys.readouterr().err.startswith("kurma: option '--dir' requires an argument\n")


def test_every_option_arrives():
    words = [
        "--log-level",
        "debug",
        "--dir",
        "/d",
        "--log-file",
        "/l",
        "--log-format=json",
        "--idle-timeout",
        "1m",
    ]
    call = parse(sorted_words(words))
    assert call is not None
    assert call.path == ("daemon", "run")
    assert call.globals["dir"] == "/d"
    given = {name: value for name, value in call.values.items() if value}
    assert given == {"log_level": "debug", "log_file": "/l", "log_format": "json", "idle_timeout": "1m"}
