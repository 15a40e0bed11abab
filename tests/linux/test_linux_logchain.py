"""A chain of log files that is turned over between any two of its reader's system calls (H7)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples

from kurma_core.formats.rotated_log import LogChain
from kurma_core.linux.beneath import open_regular


def turns(path: str, count: int) -> Iterator[None]:
    """A stager's turns, a step at a time: each file holds one number, and none is removed."""
    for number in range(1, count):
        for place in range(number - 1, -1, -1):
            os.rename(f"{path}.{place}" if place else path, f"{path}.{place + 1}")
            yield
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{number}\n")
        yield


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 7), max_size=80))
def test_each_file_is_read_once_and_in_order_whenever_it_turns(steps: list[int]) -> None:
    """Also a turn that comes half-way while the reader looks, and one more while it looks again."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/a.log"
        with open(path, "w", encoding="ascii") as file:
            file.write("0\n")
        writer = turns(path, 12)

        def beside(call: Callable[..., Any]) -> Callable[..., Any]:
            def first(*arguments: Any, **named: Any) -> Any:
                for _ in range(steps.pop() if steps else 0):
                    next(writer, None)
                return call(*arguments, **named)

            return first

        chain, found = LogChain(path), b""
        opening = mock.patch("kurma_core.formats.rotated_log.open_regular", beside(open_regular))
        with opening, mock.patch("kurma_core.formats.rotated_log.os", wraps=os) as watched:
            watched.path, watched.SEEK_CUR = os.path, os.SEEK_CUR
            for name in ("lstat", "listdir"):
                setattr(watched, name, beside(getattr(os, name)))
            while steps:
                length = len(steps)
                found += chain.read()
                if len(steps) == length:
                    steps.pop()
        for _ in writer:
            pass
        while data := chain.read():
            found += data
        chain.close()
        assert found.split() == [b"%d" % number for number in range(12)]
