"""The secrets of this host: values that apps get without their appearing in any record.

Each is a file in ``secrets/`` of the state directory, which only root can read (docs/decisions/0039-secrets.md).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from kurma_core.appc.secrets import NAMES, is_secret_name
from kurma_core.errors import HostError, SecretError, SecretExistsError, SecretNotFoundError, UsageError
from kurma_core.linux.beneath import NotRegularError, open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Most bytes of a value.
LARGEST = 512 << 10
#: The file that becomes a secret. No secret has this name, and the lock allows one at a time.
_NEW = ".new"


def check_name(name: str) -> str:
    """:returns: the name. :raises UsageError: a secret cannot have it."""
    if not is_secret_name(name):
        raise UsageError(f"{name[:40]!r} is not a name of a secret", hint=f"use {NAMES}")
    return name


class SecretStore:
    """The secrets of a state directory. Its methods need root.

    :param state_dir: the state directory.
    """

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self.path = f"{state_dir}/secrets"

    def scan(self) -> Iterator[tuple[str, float]]:
        """Yields each secret's name, in alphabetical order, and the time of its last change in seconds since 1970.

        :raises HostError: they cannot be read.
        """
        fd = self._directory("list secrets")
        if fd is None:
            return
        try:
            for name in sorted(os.listdir(fd)):
                try:
                    if check_name(name) and stat.S_ISREG((found := os.lstat(name, dir_fd=fd)).st_mode):
                        yield name, found.st_mtime
                except (UsageError, FileNotFoundError):
                    continue  # not a secret; or removed meanwhile
        finally:
            os.close(fd)

    def changed_at(self, name: str) -> float:
        """Returns the time of a secret's last change, in seconds since 1970.

        :raises SecretNotFoundError: there is no such secret. :raises HostError: it cannot be read.
        """
        for found, changed in self.scan():
            if found == name:
                return changed
        raise _missing(name)

    def value(self, name: str) -> bytes:
        """Returns the value of a secret.

        :raises SecretNotFoundError: there is no such secret. :raises SecretError: it is not a regular file.
        :raises HostError: it cannot be read.
        """
        what = f"read secret {check_name(name)}"
        directory = self._directory(what)
        if directory is None:
            raise _missing(name)
        try:
            with open(open_regular(directory, name), "rb", buffering=0) as file:
                return file.read(LARGEST + 1)
        except FileNotFoundError:
            raise _missing(name) from None
        except (NotRegularError, OSError) as error:
            if isinstance(error, NotRegularError) or error.errno == errno.ELOOP:
                place = f"{self.path}/{name}"
                raise SecretError(f"cannot {what}: {place} is not a regular file", secret=name) from None
            raise HostError.of(f"cannot {what}", error, beneath=self.path) from None
        finally:
            os.close(directory)

    def write(self, name: str, value: bytes, *, replace: bool = False) -> None:
        """Stores a secret. A crash leaves the old value or the new one.

        :param replace: replace an existing secret.
        :raises SecretExistsError: it exists, and ``replace`` is false. :raises UsageError: the name or the size is
            wrong. :raises HostError: it cannot be written.
        """
        check_name(name)
        if not 0 < len(value) <= LARGEST:
            size = f"larger than {LARGEST} bytes" if value else "empty"
            raise UsageError(f"cannot create secret {name}: its value is {size}")
        what = f"create secret {name}"
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise HostError.of(f"cannot {what}", error) from None
        directory = self._directory(what)
        if directory is None:
            raise SecretError(f"cannot {what}: {self.path} was removed meanwhile", secret=name)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            if not replace and name in os.listdir(directory):
                raise SecretExistsError(
                    f"cannot {what}: it exists", hint="--replace replaces its value", secret=name
                )
            _write(directory, value)
            os.rename(_NEW, name, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
        except OSError as error:
            raise HostError.of(f"cannot {what}", error, beneath=self.path) from None
        finally:
            os.close(directory)

    def remove(self, name: str) -> None:
        """Removes a secret.

        :raises SecretNotFoundError: there is no such secret. :raises HostError: it cannot be removed.
        """
        if not is_secret_name(name):
            raise _missing(name)
        what = f"remove secret {name}"
        directory = self._directory(what)
        if directory is None:
            raise _missing(name)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            # Of a process that was killed while it wrote.
            for file in (_NEW, name):
                if file in os.listdir(directory):
                    os.unlink(file, dir_fd=directory)
                elif file == name:
                    raise _missing(name)
            os.fsync(directory)
        except OSError as error:
            raise HostError.of(f"cannot {what}", error, beneath=self.path) from None
        finally:
            os.close(directory)

    def _directory(self, what: str) -> int | None:
        """Opens the directory; None: it does not exist.

        :param what: what the caller does, for messages.
        :raises HostError: it cannot be opened. :raises SecretError: other users can read it or write to it.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise SecretError(f"cannot {what}: {self.path} is not a directory") from None
            raise HostError.of(f"cannot {what}", error) from None
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            os.close(fd)
            raise SecretError(
                f"cannot {what}: {self.path} is not root's alone (owner {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):04o})",
                hint=f"check its files, then: chown root {self.path} && chmod 700 {self.path}",
            )
        return fd


def _write(directory: int, value: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(_NEW, flags, 0o600, dir_fd=directory)
    try:
        view = memoryview(value)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except BaseException:
        os.unlink(_NEW, dir_fd=directory)
        raise
    finally:
        os.close(fd)


def _missing(name: str) -> SecretNotFoundError:
    if not is_secret_name(name):
        return SecretNotFoundError(f"no secret {name[:40]!r}", hint="kurma secret list", secret=name)
    return SecretNotFoundError(
        f"no secret {name}", hint=f"kurma secret create {name} FILE creates it", secret=name
    )
