"""The program of an idle PID 1: a page of machine code instead of the interpreter's memory.

It runs until its pod ends: an idle pod needs less memory. ``inside/pod/pid1.py`` prepares the process: SIGCHLD is
ignored, so that the kernel itself reaps orphans; the signals to end are blocked; descriptor 3 is the pipe to the
stager; descriptor 4 says that PID 1 is ready.
"""

from __future__ import annotations

import os
import struct

#: The assembly of ``_CODE``, for x86_64 (System V, Intel syntax)::
#:
#:         mov eax, 157 ; mov edi, 4 ; xor esi, esi ; syscall              prctl(PR_SET_DUMPABLE, 0)
#:         mov eax, 157 ; mov edi, 15 ; lea rsi, [name] ; syscall          prctl(PR_SET_NAME, name)
#:         mov eax, 1 ; mov edi, 4 ; lea rsi, [ready] ; mov edx, 1 ; syscall      write(4, "R", 1)
#:         cmp eax, 1 ; jne over                                           the stager has ended
#:         mov eax, 3 ; mov edi, 4 ; syscall                               close(4)
#:     wait:
#:         mov eax, 128 ; lea rdi, [set] ; xor esi, esi ; xor edx, edx ; mov r10d, 8 ; syscall
#:                                                                         rt_sigtimedwait(set, NULL, NULL, 8)
#:         test eax, eax ; jle wait                                        interrupted
#:         mov eax, 1 ; mov edi, 3 ; lea rsi, [stop] ; mov edx, 1 ; syscall       write(3, "s", 1)
#:         jmp wait
#:     over:
#:         mov eax, 60 ; mov edi, 1 ; syscall                              exit(1)
#:     set: .quad 0x20004002                                               SIGTERM, SIGINT, SIGPWR
#:     name: .asciz "kurma-init" ; ready: .ascii "R" ; stop: .ascii "s"
_CODE = bytes.fromhex(
    "b89d000000bf0400000031f60f05b89d000000bf0f000000488d35750000000f"
    "05b801000000bf04000000488d356d000000ba010000000f0583f8017542b803"
    "000000bf040000000f05b880000000488d3d3600000031f631d241ba08000000"
    "0f0585c07ee4b801000000bf03000000488d3529000000ba010000000f05ebca"
    "b83c000000bf010000000f0502400020000000006b75726d612d696e69740052"
    "73"
)
_BASE = 0x400000
_HEADER, _SEGMENT = 64, 56
_START = _HEADER + 2 * _SEGMENT


def init_program() -> bytes | None:
    """An executable file in ELF; None: there is no machine code for this machine, and the interpreter does it."""
    if os.uname().machine != "x86_64":
        return None
    size = _START + len(_CODE)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",  # 64 bits, little-endian
        2,  # an executable
        62,  # x86_64
        1,
        _BASE + _START,
        _HEADER,
        0,
        0,
        _HEADER,
        _SEGMENT,
        2,
        0,
        0,
        0,
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)  # readable and executable
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)  # not executable
    return header + load + stack + _CODE
