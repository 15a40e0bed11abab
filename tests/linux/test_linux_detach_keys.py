"""Keys that a person leaves by (H8)."""

from __future__ import annotations

import pytest

from kurma_core.formats.detach_keys import DEFAULT, DetachKeys, parse


def test_detach_keys_are_characters_and_control_keys() -> None:
    assert parse(DEFAULT) == b"\x10\x11"
    assert parse("a,ctrl-[,ctrl-@,~") == b"a\x1b\x00~"
    assert parse("") == b""


@pytest.mark.parametrize("text", ["ctrl-1", "ctrl-", "ctrl-ab", "ab", "a,,b", "\u00fc", "\x01", "alt-x"])
def test_what_is_no_key_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        parse(text)


def test_the_beginning_of_the_keys_is_held_back_and_nothing_is_lost() -> None:
    """Also where what was held back begins them anew."""
    keys = DetachKeys(b"aab")
    assert keys.look(b"xa") == b"x"
    assert keys.look(b"a") == b""
    assert keys.look(b"a") == b"a"
    assert keys.look(b"cd") == b"aacd"
    assert not keys.seen
    assert keys.look(b"yaabz") == b"y"
    assert keys.seen


def test_without_keys_all_goes_through() -> None:
    keys = DetachKeys(b"")
    assert keys.look(b"\x10\x11") == b"\x10\x11"
    assert not keys.seen
