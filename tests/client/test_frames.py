"""Frames: taken out of the bytes of a stream as they were put in, however these come."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.api.wire import INPUT, LIMIT, LOG, MESSAGE, FrameError, FrameReader, frame

FRAMES = st.lists(st.tuples(st.integers(MESSAGE, LOG), st.binary(max_size=300)), max_size=8)


@given(FRAMES, st.lists(st.integers(0, 3000), max_size=12))
def test_however_the_bytes_are_split(frames, cuts):
    data = b"".join(frame(kind, payload) for kind, payload in frames)
    places = sorted({0, len(data), *[cut for cut in cuts if cut < len(data)]})
    reader, found = FrameReader(), []
    for begin, end in itertools.pairwise(places):
        reader.feed(data[begin:end])
        found += reader.frames()
    assert found == frames
    assert not reader.inside


@given(FRAMES, st.binary(max_size=60))
def test_what_follows_is_told_apart_or_refused(frames, garbage):
    """Whatever comes: whole frames of known kinds and sizes, then a wait or a refusal."""
    reader = FrameReader(b"".join(frame(kind, payload) for kind, payload in frames))
    assert list(reader.frames()) == frames
    reader.feed(garbage)
    try:
        for kind, payload in reader.frames():
            assert kind <= LOG
            assert len(payload) <= len(garbage)
    except FrameError:
        assert any(byte > LOG for byte in garbage) or len(garbage) > 1


@pytest.mark.parametrize("head", [bytes([LOG + 1, 0, 0, 0, 0]), bytes([INPUT]) + (LIMIT + 1).to_bytes(4, "big")])
def test_no_byte_of_what_is_no_frame_is_waited_for(head):
    reader = FrameReader(frame(INPUT, b"before"))
    reader.feed(head)
    frames = reader.frames()
    assert next(frames) == (INPUT, b"before")
    with pytest.raises(FrameError, match=f"a frame of kind {head[0]} and {int.from_bytes(head[1:], 'big')} bytes"):
        next(frames)


def test_the_largest():
    reader = FrameReader(frame(INPUT, bytes(LIMIT)))
    assert list(reader.frames()) == [(INPUT, bytes(LIMIT))]
