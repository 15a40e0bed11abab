"""Memory that the kernel writes through."""

import _ctypes
import gc
import os

import pytest

from kurma_core.linux import libc


def test_a_buffer_is_written_through_and_keeps_its_size_meanwhile():
    data = bytearray(8)
    pointer = libc.buffer(data)
    with pytest.raises(BufferError):
        data.append(0)
    read, write = os.pipe()
    try:
        os.write(write, b"12345678")
        number = {"x86_64": 0, "aarch64": 63}[os.uname().machine]
        assert libc.syscall(number, read, pointer, len(data)) == 8
    finally:
        os.close(read)
        os.close(write)
    assert data == b"12345678"
    del pointer
    data.append(0)


def test_no_type_is_made_for_each_size():
    """ctypes makes an array type for each length: some ten objects, which hold each other."""
    gc.collect()
    gc.disable()
    try:
        before = len(_ctypes.Array.__subclasses__())
        for size in range(1, 200):
            libc.buffer(bytearray(size))
            assert libc.address(bytearray(size))
        assert len(_ctypes.Array.__subclasses__()) == before
    finally:
        gc.enable()
