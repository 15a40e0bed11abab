"""Reads one configuration file, YAML or JSON, into plain JSON values; ambiguous content is an error.

:class:`OwnFile` is a file that commands write.
"""

from __future__ import annotations

import os
import stat

from kurma_core.errors import ConfigError, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    import yaml

    Json = Any

#: Limits of one file: the number of values, where an anchor's value counts at each use; and the depth of nesting.
_MOST_VALUES = 100_000
_MOST_DEEP = 100
#: A YAML text with a greater upper bound of its depth (brackets plus columns) is checked before it is loaded.
_MAY_BE_DEEP = 1000


def read(file: str) -> Json:
    """Reads the file's value; None for an empty file. ``.json`` is read as JSON, any other suffix as YAML.

    :raises ConfigError: the file cannot be read, is writable by all users, breaks its format, repeats a key,
        or holds a value that JSON does not have (a date, a key that is not text).
    """
    return value_of(file, text_of(file))


def value_of(file: str, text: str) -> Json:
    """Like :func:`read`, for the file's text."""
    value = _json(file, text) if file.endswith(".json") else _yaml(file, text)
    _plain(file, value)
    return value


def text_of(file: str, *, pipe: bool = False) -> str:
    """Reads the file's text.

    :param pipe: the file may be a pipe.
    :raises ConfigError: the file cannot be read, or is writable by all users.
    """
    from kurma_core import named_files

    try:
        if not pipe and os.path.exists(file) and stat.S_ISFIFO(os.stat(file).st_mode):
            raise HostError(f"{file}: cannot be read: it is not a regular file")
        with named_files.opened(file, endless=True) as stream:
            # A user who can write this file can name keys and images that run as root.
            info = os.fstat(stream.fileno())
            if stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IWOTH:
                raise ConfigError(f"{file}: anyone may write to it", hint=f"chmod o-w {file}", file=file, path="")
            return named_files.rest(stream, file).decode()
    except HostError as error:
        raise ConfigError(error.message, file=file, path="") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{named_files.called(file)}: not UTF-8: byte {error.start}", file=file, path=""
        ) from error


class OwnFile:
    """A file of ``kurma.d`` that commands write, and nothing else does. As a context manager it is locked against
    other commands; if the block fails after :meth:`write`, the old file is put back.

    :param directory: the configuration directory. :param name: of the file.
    :param mark: the file's first line, without ``#``.
    :param what: the beginning of errors: ``cannot create network shop``.
    :ivar written: whether the file was replaced, also if the old one has been put back since.
    """

    def __init__(self, directory: str, name: str, mark: str, what: str) -> None:
        self.path = f"{directory}/kurma.d/{name}"
        self._mark = f"# {mark}\n"
        self._what = what
        self._lock = -1
        self.written = False
        #: The file before :meth:`write`; empty: there was none.
        self._before = b""

    def __enter__(self) -> OwnFile:
        import fcntl

        directory = os.path.dirname(self.path)
        try:
            os.makedirs(directory, mode=0o755, exist_ok=True)
            self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise self._error(f"{directory}: {error.strerror}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, *_: object) -> None:
        """:raises ConfigError: the block failed, and the old file cannot be put back."""
        try:
            if failure is not None and self.written:
                self._put_back()
        except OSError as error:
            failed = str(failure) or f"{self._what}: interrupted"
            raise ConfigError(
                f"{failed}; cannot put the old {self.path} back: {error.strerror}",
                hint="check the file: kurma config check",
                file=self.path,
                path="",
            ) from failure
        finally:
            os.close(self._lock)

    def _put_back(self) -> None:
        from contextlib import suppress

        from kurma_core.linux.files import replace_file

        if self._before:
            replace_file(self.path, self._before, 0o644)
        else:
            with suppress(FileNotFoundError):
                os.unlink(self.path)

    def read(self) -> dict[str, Any]:
        """The file's value; empty: there is no file.

        :raises ConfigError: another program or a person wrote the file.
        """
        if not os.path.lexists(self.path):
            return {}
        text = text_of(self.path)
        if not text.startswith(self._mark):
            wrong = self._error(f"{self.path} was not written by this command")
            wrong.hint = "rename it; this command writes that file anew"
            raise wrong
        found: dict[str, Any] = value_of(self.path, text) or {}
        return found

    def write(self, value: dict[str, Any]) -> None:
        """Replaces the file; a crash leaves the old one. :raises ConfigError: it cannot be written."""
        import yaml

        from kurma_core.linux.files import replace_file

        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
        self._before = text_of(self.path).encode() if os.path.lexists(self.path) else b""
        self.written = True  # before the file changes: Ctrl-C may come in between
        try:
            replace_file(self.path, f"{self._mark}{text}".encode(), 0o644)
        except OSError as error:
            self.written = False
            raise self._error(f"{self.path}: {error.strerror}") from error

    def _error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._what}: {reason}", file=self.path, path="")


def _fail(file: str, what: str, path: str = "") -> NoReturn:
    raise ConfigError(f"{file}: {path}: {what}" if path else f"{file}: {what}", file=file, path=path)


def _json(file: str, text: str) -> Json:
    from kurma_core.json_text import JsonError, loads

    try:
        return loads(text) if text.strip() else None
    except JsonError as error:
        what = str(error) if error.line else f"expected {error.expected}, found {error.found}"
        _fail(file, what, error.path.removeprefix("$").removeprefix("."))


def _yaml(file: str, text: str) -> Json:
    import yaml

    # The loader in C is several times faster; some builds of PyYAML lack it.
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc, valid-type]
        """Refuses repeated keys, but allows overriding keys of a merge (``<<``)."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        line = key.start_mark.line + 1
                        _fail(file, f"line {line}: the key {key.value!r} is given twice")
                    seen.add(key.value)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return mapping

    try:
        if text.count("[") + text.count("{") + max(map(len, text.splitlines()), default=0) > _MAY_BE_DEEP:
            _check_depth(file, yaml.parse(text, base))
        return yaml.load(text, Loader)  # noqa: S506 (a subclass of the safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        _fail(file, f"{place}not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        _fail(file, f"not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        _fail(file, "not YAML: nested too deep")
    except (
        ValueError
    ) as error:  # a scalar that looks like a date and is none, or a number that Python does not read
        _fail(file, f"not YAML: {_digits(error, text) or error}")


def _check_depth(file: str, events: Iterator[yaml.Event]) -> None:
    """Refuses deep nesting: the loader in C recurses as deep as the text nests, and overflows its stack."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind in ("SequenceStartEvent", "MappingStartEvent")
        depth -= kind in ("SequenceEndEvent", "MappingEndEvent")
        if depth > _MOST_DEEP:
            mark = event.start_mark
            _fail(
                file, f"line {mark.line + 1}: not YAML: nested too deep" if mark else "not YAML: nested too deep"
            )


def _digits(error: ValueError, text: str) -> str | None:
    """Returns a message for a number with too many digits, since Python's message is about its own settings; None
    for other errors."""
    import re
    import sys

    if "integer string conversion" not in str(error):
        return None
    found = re.search(rf"[\d_]{{{sys.get_int_max_str_digits()},}}", text)
    line = f"line {text.count(chr(10), 0, found.start()) + 1}: " if found else ""
    return f"{line}a number of too many digits"


def _plain(file: str, root: Json) -> None:
    """Refuses values that JSON does not have, and anchors that contain themselves or expand to millions of
    values."""
    pending: list[tuple[Json, str, int]] = [(root, "", 0)]
    count = 0
    while pending:
        value, path, depth = pending.pop()
        count += 1
        if count > _MOST_VALUES or depth > _MOST_DEEP:
            _fail(file, "too large or nested too deep: does an anchor stand for itself?", path[:60])
        if isinstance(value, dict):
            for name, item in value.items():
                below = f"{path}.{name}" if path else f"{name}"
                if not isinstance(name, str):
                    _fail(file, f"a key must be text, found {name!r}: put it in quotes", below)
                pending.append((item, below, depth + 1))
        elif isinstance(value, list):
            pending.extend((item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value))
        elif value is not None and not isinstance(value, str | int | float):
            _fail(file, f"expected what JSON can say, found a {type(value).__name__}: put it in quotes", path)
