"""Reads and writes files that the user names, with the same checks and errors everywhere.

An input may come from any user: it must be a regular file, or have a limited size. An output is a regular file
that appears complete or not at all, and replaces only a regular file: as root, a rename could replace a device.
"""

from __future__ import annotations

import errno
import os
import stat
from _thread import get_native_id

from kurma_core.errors import ArchiveError, HostError, ManifestError, StoreError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import BinaryIO

#: Most bytes of a document that people write: manifests, pods, lists of variables.
LARGEST = 16 << 20
#: Most bytes of a detached signature.
LARGEST_SIGNATURE = 8192


def called(path: str) -> str:
    """The name of a file in messages: ``standard input`` instead of its device."""
    return "standard input" if path == "/dev/stdin" else path


def opened(path: str, *, endless: bool = False) -> BinaryIO:
    """Opens the file for reading.

    :param endless: a pipe or a device is allowed, too; the caller must limit how much it reads (:func:`content`).
    :raises HostError: it cannot be opened, or is not a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if endless else _regular(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise HostError(f"{called(path)}: cannot be read: it is a directory", path=path)
    return open(fd, "rb")


def _regular(path: str) -> int:
    from kurma_core.linux import beneath

    try:
        return beneath.open_regular(beneath.AT_FDCWD, path, resolve=0)
    except beneath.NotRegularError as error:
        raise HostError(f"{called(path)}: cannot be read: it is {_kind(error.mode)}", path=path) from None


def content(path: str, *, option: str = "", endless: bool = False, largest: int = LARGEST) -> bytes:
    """Reads all bytes of a file.

    :param option: the option of the command line that names the file. :param endless: as for :func:`opened`.
    :raises HostError: it cannot be read, or is larger than ``largest``.
    :raises UsageError: the same, if an option names the file.
    """
    try:
        with opened(path, endless=endless) as stream:
            return rest(stream, path, largest)
    except HostError as error:
        if option:
            raise UsageError(f"{option}: {error.message}", path=path) from None
        raise


def rest(stream: BinaryIO, path: str, largest: int = LARGEST) -> bytes:
    """Reads an open file to its end.

    :raises HostError: it cannot be read, or is larger than ``largest``.
    """
    try:
        data = stream.read(largest + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > largest:
        raise HostError(f"{called(path)}: cannot be read: it is larger than {largest} bytes", path=path)
    return data


def writable(path: str, *, made_of: Iterable[str | None] = ()) -> None:
    """Refuses a path that :func:`written` would refuse, before the caller spends work on the content.

    :param made_of: the input files, which the output must not replace, under any name.
    :raises UsageError: the path is one of those, or ``-``, or holds a directory, a device, a pipe or a link.
    :raises HostError: its directory does not exist.
    """
    if path in ("", "-"):
        what = "the path is empty" if not path else "standard output is not written to"
        raise UsageError(f"{path}: {what}" if path else what, hint="name a file; ./- is one called -")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        above = os.path.dirname(path)
        if above and not os.path.isdir(above):
            raise HostError(
                f"{path}: cannot be written: there is no directory {above}", hint=f"mkdir -p {above}", path=path
            ) from None
        return
    except OSError as error:
        raise HostError(f"{path}: cannot be written: {_reason(error)}", path=path, errno=error.errno) from None
    if not stat.S_ISREG(mode):
        raise UsageError(
            f"{path}: cannot be written: it is {_kind(mode)}", hint="name a new file, or one to replace", path=path
        )
    for source in made_of:
        if source is not None and os.path.exists(source) and os.path.samefile(source, path):
            raise UsageError(
                f"{path}: cannot be written: it is what the new file is made of",
                hint="name another file",
                path=path,
            )


class written:
    """Writes a file that appears under its name once it is complete, and replaces only a regular file.

    :raises UsageError: as :func:`writable`. :raises HostError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary = f"{path}.{get_native_id()}.tmp"

    def __enter__(self) -> BinaryIO:
        writable(self._path)
        self._named = False
        try:
            self._out = self._unnamed()
        except OSError as error:
            raise self._refused(error) from None
        return self._out

    def _unnamed(self) -> BinaryIO:
        """Opens a file without a name (O_TMPFILE), so that nothing is left of it if this process dies. On file
        systems without such files, it opens a file with a temporary name."""
        try:
            directory = os.path.dirname(self._path) or "."
            return open(os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666), "wb")
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
        self._named = True
        return open(self._temporary, "xb")

    def _place(self) -> None:
        self._out.flush()
        if not self._named:
            fd = self._out.fileno()
            # Without a directory argument Python calls link(2), which does not follow the link.
            os.link(f"/proc/self/fd/{fd}", self._temporary, src_dir_fd=fd)
            self._named = True
        os.rename(self._temporary, self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if error is None:
                writable(self._path)  # another program may have made a file there meanwhile
                self._place()
                self._out.close()
                return
        except OSError as failure:
            self._remove()
            raise self._refused(failure) from None
        except BaseException:
            self._remove()
            raise
        self._remove()
        if isinstance(error, OSError):
            raise self._failed(error) from None
        full = no_room_left(error)
        if full is not None:
            raise self._refused(full) from None

    def _remove(self) -> None:
        # The first error is more important than errors of this clean-up.
        try:  # noqa: SIM105 - contextlib is not light
            self._out.close()
        except OSError:
            pass
        if self._named:
            try:  # noqa: SIM105
                os.unlink(self._temporary)
            except OSError:
                pass

    def _failed(self, error: OSError) -> HostError:
        """Wraps an error. :param error: if it names another file, that file is the cause: it was being read."""
        other = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
        if other is not None and other != self._temporary:
            return HostError(f"{other}: {_reason(error)}", path=other, errno=error.errno)
        return self._refused(error)

    def _refused(self, error: OSError) -> HostError:
        """Wraps an error with the file's final name; until it is complete the file has none, or a temporary
        one."""
        return HostError(f"{self._path}: cannot be written: {_reason(error)}", path=self._path, errno=error.errno)


def no_room_left(error: BaseException | None) -> OSError | None:
    """The kernel's error, if a StoreError says that a disk is full. Reading the store never fills a disk, so the
    output's disk is full."""
    number = error.data.get("errno") if isinstance(error, StoreError) else None
    if number not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    return OSError(number, os.strerror(number))


class naming:
    """Puts the file's name before errors about an archive or a document, since their readers do not know the name.

    :param path: None: the input is not a file.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self._path is None or not isinstance(error, ArchiveError | ManifestError):
            return
        if not error.message.startswith(f"{self._path}:"):
            error.message = f"{self._path}: {error.message}"


def _unreadable(path: str, error: OSError) -> HostError:
    return HostError(f"{called(path)}: cannot be read: {_reason(error)}", path=path, errno=error.errno)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "not a regular file"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# --- paths in locators of images -------------------------------------------------------------------------------

_SCHEME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789+-")


def absolute_locator(text: str, kind: Callable[[str], str | None], directory: str | None = ".") -> str:
    """Makes the path in a locator absolute, so that a process with another working directory understands it.

    A locator is a path if it begins with ``/``, ``./`` or ``../``, or is the name of an existing file that ends in
    ``.aci``. The REST of ``SCHEME:REST`` is a path if the fetcher of the scheme declares so.

    :param kind: returns :attr:`Driver.locators` of the fetcher of a scheme; None: no such fetcher is installed.
    :param directory: the working directory of the locator's author; None: unknown, as in kurmad.
    :raises UsageError: the path is relative and the directory unknown.
    """
    if text in (".", "..") or text.startswith(("/", "./", "../")):
        return _absolute(text, text, directory)
    if text.endswith(".aci") and directory is not None and os.path.exists(os.path.join(directory, text)):
        return _absolute(text, text, directory)
    scheme, rest = split_locator(text)
    if not scheme or not rest or rest.startswith("//") or kind(scheme) != "path":
        return f"{scheme}:{rest}" if scheme and rest.startswith("//") else text
    return f"{scheme}:{_absolute(rest, text, directory)}"


def _absolute(path: str, text: str, directory: str | None) -> str:
    if directory is None and not path.startswith("/"):
        raise UsageError(
            f"{text}: a relative path, and the directory that it starts from is unknown",
            hint="write the whole path: /DIRECTORY/FILE",
        )
    return os.path.abspath(os.path.join(directory or "/", path))


def split_locator(text: str) -> tuple[str, str]:
    """Splits ``SCHEME:REST``; the scheme is empty if the text begins with no scheme."""
    scheme, colon, rest = text.partition(":")
    lower = scheme.lower()
    return (lower, rest) if colon and lower and _SCHEME.issuperset(lower) else ("", text)
