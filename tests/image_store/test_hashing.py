"""Digests in a thread of their own."""

from __future__ import annotations

import hashlib
import threading

import pytest

from kurma_core.image_store.exporting import BackgroundHash


@pytest.mark.parametrize(
    "sizes", [[], [0], [1, 2, 3], [1000] * 3000, [1 << 20] * 20, [10, 1 << 19, 0, 10, 1 << 18]]
)
def test_the_digest_is_over_everything_in_order(sizes: list[int]) -> None:
    expected = hashlib.sha512()
    with BackgroundHash("sha512") as digest:
        for number, size in enumerate(sizes):
            piece = bytes([number % 251]) * size
            expected.update(piece)
            digest.update(piece)
        assert digest.hexdigest() == expected.hexdigest()


def test_an_error_on_the_way_leaves_no_thread() -> None:
    def fail() -> None:
        with BackgroundHash("sha256") as digest:
            digest.update(bytes(1 << 20))
            raise RuntimeError

    before = threading.active_count()
    with pytest.raises(RuntimeError):
        fail()
    assert threading.active_count() == before
