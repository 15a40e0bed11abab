"""A Landlock domain: a wall between processes that share a PID namespace and run as the same user.

A process in a domain may trace (and so: read the root, memory, environment or descriptors of, through ``/proc``)
only processes of its own domain and of those made below it. Nothing else is meant to be restricted here, so every
right that the domain handles is granted again beneath ``/``; that mounting is forbidden to whoever is in a domain
comes along, and is no loss to a process without CAP_SYS_ADMIN.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import libc

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
# Renaming and linking across directories: it needs a grant in every domain, so it is the one right to handle.
_ACCESS_FS_REFER = 1 << 13
_FIRST_ABI_WITH_REFER = 2


def abi() -> int:
    """The version of Landlock that the running kernel offers; 0: none."""
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return 0
        raise


def usable() -> bool:
    """Whether :func:`enter_domain` can work. The first version could not but forbid renames across directories."""
    return abi() >= _FIRST_ABI_WITH_REFER


def enter_domain() -> None:
    """Put this process, and all that it starts from now on, into a new domain of its own.

    Runs with CAP_SYS_ADMIN or under ``no_new_privs``, after the last mount and the change of root.

    :raises OSError: ``ENOSYS`` or ``EOPNOTSUPP`` where the kernel has no (sufficient) Landlock.
    """
    if not usable():
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock that allows renames across directories")
    attributes = libc.words(_ACCESS_FS_REFER)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # struct landlock_path_beneath_attr is packed: a 64-bit mask and a 32-bit descriptor
            rule = libc.words(_ACCESS_FS_REFER) + libc.words(root, size=4)
            libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
        finally:
            os.close(root)
        libc.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
