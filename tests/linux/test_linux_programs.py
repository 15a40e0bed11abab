"""What programs have printed, and where they are."""

import os

from kurma_core.linux.programs import find_program, one_line


def test_what_a_program_has_printed_is_one_line_that_a_terminal_bears():
    assert one_line(b"  two\n\x1b[31mwords\xff\t ") == "two [31mwords\ufffd"
    assert one_line("of\u202e text\r\n") == "of text"
    assert one_line(b"\n") == ""


def test_of_what_is_too_long_the_beginning_and_the_end_are_told():
    told = one_line(b"begin " + b"x" * 5000 + b" end")
    assert len(told) == 603
    assert told.startswith("begin x")
    assert told.endswith("x end")
    assert " … " in told
    assert one_line("y" * 600) == "y" * 600


def test_programs_are_where_the_caller_looks_and_where_an_administrators_are(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    program = tmp_path / "mine" / "kurma-here"
    program.touch(0o755)
    (tmp_path / "mine" / "kurma-plain").touch(0o644)
    (tmp_path / "mine" / "kurma-directory").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/mine")
    assert find_program("kurma-here") == str(program)
    assert find_program("sh") in ("/usr/bin/sh", "/bin/sh")
    assert find_program("kurma-directory") is None
    assert find_program("kurma-absent") is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "mine")  # what it means depends on where one is
    assert find_program("kurma-here") is None
    assert os.access("mine/kurma-here", os.X_OK)
