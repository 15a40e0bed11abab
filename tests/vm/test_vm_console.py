"""The error about a machine that fell has the last lines of the machine's console."""

from tests.vm.machine import tail


def lines(count, text):
    return "".join(f"{text} {number}\n" for number in range(count))


def test_last_lines():
    assert tail(lines(100, "line")).splitlines() == [f"line {number}" for number in range(60, 100)]


def test_how_far_it_came_before_a_panic_with_a_long_trace():
    panic = "[    7.1] Kernel panic - not syncing: Attempted to kill init!\n" + lines(60, "[    7.1]  ? frame")
    told = tail(lines(50, "before") + panic)
    assert told.startswith("before 10\n")
    assert told.endswith("? frame 59")


def test_nothing_printed():
    assert tail("") == ""
