"""One run of a command: its client, settings, passphrases and terminal, and functions that print."""

from __future__ import annotations

import os
import sys
from _thread import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TextIO

    from kurma_core.cli.output import Column, Template
    from kurma_core.cli.passphrase import UserPassphrases
    from kurma_core.cli.progress import Bar
    from kurma_core.client import Settings
    from kurma_core.client.client import Client
    from kurma_core.config.files import OwnFile
    from kurma_core.daemon.process.service_manager import Service
    from kurma_core.errors import KurmaError
    from kurma_core.models.streams import Stdio
    from kurma_core.schema import JsonValue

    Connect = Callable[[Settings], Client]


class OutputClosed(BrokenPipeError):
    """Standard output has no reader any more."""


class ReaderGone(BaseException):
    """As :class:`OutputClosed`, raised by a signal's handler while nothing is written. It is not an OSError, so
    that no handler of system errors catches it.
    """


def silence(fd: int) -> None:
    """After the reader of an output is gone: lets the interpreter's last flush write to ``/dev/null``."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


def flush(out: TextIO) -> None:
    """Writes out buffered output. :raises OutputClosed: it has no reader any more."""
    try:
        out.flush()
    except OSError as error:
        _not_written(error, out)


def _not_written(error: OSError, out: TextIO) -> None:
    """Drops the output of a terminal that has hung up, since a signal follows and ends the command. Raises the
    error of any other output.

    :raises OutputClosed: the output has no reader any more. :raises OSError: it has another fault.
    """
    import errno
    import stat

    if isinstance(error, BrokenPipeError):
        raise OutputClosed from error
    if error.errno != errno.EIO or not stat.S_ISCHR(os.fstat(out.fileno()).st_mode):
        raise error
    silence(out.fileno())


class Session:
    """One command's run. A context manager: the client, if one was made, is closed at the end.

    :param globals: the options before the command.
    :param connect: None: :func:`kurma_core.client.connect`.
    :param service: the service manager of this process, if there is one.
    :raises UsageError: an option has an empty path.
    """

    def __init__(
        self, globals: Mapping[str, Any], connect: Connect | None = None, service: Service | None = None
    ) -> None:
        self._connect = connect
        self.service = service
        #: Standard output. Inside the ``with`` statement ``sys.stdout`` is standard error, since plugins and
        #: libraries may print.
        self.out: TextIO = sys.stdout
        self._client: Client | None = None
        self._needs_daemon = False
        self._bar: Bar | None = None
        self._noted: set[str] = set()
        # A signal's handler may note while its thread does.
        self._lock = RLock()
        for name in ("dir", "config", "host"):
            if globals[name] == "":
                from kurma_core.errors import UsageError

                raise UsageError(f"--{name}: the {'address' if name == 'host' else 'path'} is empty")
        self.debug: bool = globals["debug"]
        self.config_file: str | None = globals["config"] or os.environ.get("KURMA_CONFIG") or None
        environment = os.environ.get("KURMA_DIR") or None
        self.state_dir: str | None = globals["dir"] or environment
        self.state_dir_origin = "command line" if globals["dir"] else "environment"
        self.config_origin = "--config" if globals["config"] else "KURMA_CONFIG"
        #: Of the command: see :class:`kurma_core.cli.command_line.Command`.
        self.makes = False
        self.host: str | None = globals["host"] or os.environ.get("KURMA_HOST") or None
        # Of the command's own options: see :data:`kurma_core.cli.command_line.SESSION_OPTIONS`.
        self.passphrase_file: str | None = None
        self.no_legend = False
        self.no_trunc = False
        self._template: Template | None = None
        self.format = "table"
        # Removed from the environment: processes that we start must not inherit it.
        self._passphrase = os.environ.pop("KURMA_PASSPHRASE", None)

    def __enter__(self) -> Session:
        sys.stdout = sys.stderr
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._bar is not None:
                self._bar.close()
                if self._bar.kept and kind is not None and not issubclass(kind, Exception):
                    self.note("stopped; what was downloaded is kept: the same command goes on from there")
            if self._client is not None:
                self._client.close()
        finally:
            sys.stdout = self.out

    @property
    def format(self) -> str:
        """How to print: ``table``, ``json``, ``yaml``, or a template.

        :raises UsageError: by its setter: the template is malformed.
        """
        return self._format

    @format.setter
    def format(self, text: str) -> None:
        self._format = text
        if "{{" in text:
            from kurma_core.cli.output import Template

            self._template = Template(text)

    @property
    def client(self) -> Client:
        """:raises ConfigError: the configuration is wrong."""
        if self._client is None:
            from kurma_core import client

            if self._connect is not None:
                self._client = self._connect(self.settings)
            else:
                self._client = client.connect(self.settings, start=self._needs_daemon)
        return self._client

    def need_daemon(self) -> None:
        """Starts a daemon if none runs, for a pod that outlives this command. The client works by way of it from
        now on."""
        self._needs_daemon = True
        if self._client is not None and not self._client.remote:
            self._client.close()
            self._client = None

    @property
    def settings(self) -> Settings:
        """Settings of the client."""
        from kurma_core.client import Settings

        return Settings(
            config_file=self.config_file,
            state_dir=self.state_dir,
            state_dir_origin=self.state_dir_origin,
            config_origin=self.config_origin,
            makes=self.makes,
            host=self.host,
            debug=self.debug,
            note=self._note_once,
            passphrases=self.passphrases,
            progress=self.progress,
            service=self.service.notify if self.service is not None else None,
        )

    def own_file(self, name: str, mark: str, what: str, instead: str) -> OwnFile:
        """A file of the configuration that commands write. :param instead: what to write into a single file.

        :raises UsageError: the configuration is a single file.
        """
        from kurma_core.config.files import OwnFile

        if self.single_file is not None:
            from kurma_core.errors import UsageError

            raise UsageError(
                f"{what}: the configuration is the single file {self.single_file}", hint=f"write there: {instead}"
            )
        return OwnFile(self.settings.config_path, name, mark, what)

    @property
    def single_file(self) -> str | None:
        """The configuration, if it is a single file and not a directory."""
        path = self.settings.config_path
        return None if self.config_file is None or os.path.isdir(path) else path

    def passphrases(self) -> UserPassphrases:
        """The source of passphrases of encrypted archives."""
        from kurma_core.cli.passphrase import UserPassphrases

        variable = None if self._passphrase is None else os.fsencode(self._passphrase)
        return UserPassphrases(self.passphrase_file, variable, self._clear)

    # -- speaking --

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.clear()

    def note(self, text: str) -> None:
        """Prints one line for the user on standard error."""
        from kurma_core.cli.output import one_line

        self._clear()
        # In one piece: threads of the client note, too.
        print(f"kurma: {one_line(text)}\n", end="", file=sys.stderr)

    def _note_once(self, text: str) -> None:
        """Notes what the client says, each line once: several of its steps may meet the same failure."""
        with self._lock:
            if text not in self._noted:
                self._noted.add(text)
                self.note(text)

    def problem(self, error: KurmaError) -> None:
        """Reports an error that does not end the command."""
        from kurma_core.cli.output import one_line

        self.note(error.message)
        if error.hint:
            print(f"  hint: {one_line(error.hint)}", file=sys.stderr)

    def progress(self) -> Bar | None:
        """A progress bar, if standard error is a terminal."""
        if self._bar is None and os.isatty(2):
            from kurma_core.cli.progress import Bar

            self._bar = Bar(sys.stderr, ticking=True)
        return self._bar

    @staticmethod
    def terminal() -> bool:
        """Whether a person can be asked."""
        return os.isatty(0) and os.isatty(2)

    @classmethod
    def ask(cls, question: str) -> bool:
        """Asks a yes-or-no question at the terminal; any answer but yes, and the end of input, is a no."""
        return cls.answer(f"{question} [y/N]").lower() in ("y", "yes")

    @staticmethod
    def answer(question: str) -> str:
        """Asks for a line at the terminal; empty at the end of input."""
        from kurma_core.cli.output import for_terminal

        print(f"kurma: {for_terminal(question)} ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip()

    def line(self, text: str) -> None:
        """Prints one line on standard output. Control characters are removed for a terminal, since much of the
        output comes from untrusted sources."""
        if self.out.isatty():
            from kurma_core.cli.output import for_terminal

            text = for_terminal(text)
        try:
            self.out.write(text + "\n")
        except OSError as error:
            _not_written(error, self.out)

    def flush(self) -> None:
        """Writes out buffered output, for a reader that follows it."""
        flush(self.out)

    def document(self, data: bytes) -> None:
        """Prints a document byte for byte; on a terminal, with control characters escaped."""
        if self.out.isatty():
            from kurma_core.cli.output import for_terminal

            data = for_terminal(data.decode(errors="backslashreplace")).encode()
        self.write("stdout", data, flush=True)

    def write(self, stream: str, data: bytes, *, flush: bool) -> None:
        """Bytes, as they are, on ``stdout`` or ``stderr``."""
        out = self.out if stream == "stdout" else sys.stderr
        try:
            out.flush()
            out.buffer.write(data)
            if flush:
                out.buffer.flush()
        except OSError as error:
            _not_written(error, out)

    def json(self, value: object) -> None:
        from kurma_core.cli.output import json_text

        self.line(json_text(value))

    def show(self, value: object, table: Callable[[], str]) -> None:
        """One value that has ``to_json`` or is JSON: as JSON, as YAML, by a template, or as ``table`` writes it
        for people. A template is applied to each item of a list."""
        from kurma_core.cli import output

        if self._template is not None:
            self.listing(value if isinstance(value, list) else [value], ())
        else:
            self.line(output.formatted(self.format, output.plain(value)) if self.format != "table" else table())

    def listing(
        self, items: Sequence[Any], columns: Sequence[Column], kind: type[JsonValue] | None = None
    ) -> None:
        """A listing of values that have ``to_json`` or are mappings. At a terminal it is no wider than that.

        :param kind: of the values, if they are JSON already: a template is checked by it.
        """
        from kurma_core.cli import output

        if self._template is not None:
            lines = self._template.lines(items, kind, legend=not self.no_legend)
        elif self.format != "table":
            lines = iter([output.formatted(self.format, [output.plain(item) for item in items])])
        else:
            lines = output.table(items, columns, legend=not self.no_legend, width=self.width())
        for line in lines:
            self.line(line)

    def width(self) -> int:
        """Columns of the terminal that standard output is. 0: tables may be of any width."""
        if self.no_trunc:
            return 0
        try:
            return os.get_terminal_size(self.out.fileno()).columns
        except (OSError, ValueError):
            return 0

    def each(self, references: Sequence[str], action: Callable[[str], object]) -> int:
        """Applies the action to each reference, also after a failure. A reference that is given twice counts once.

        :param action: returns an exit code, or any other value for 0.
        :returns: 0, or the exit code of the first failure.
        """
        from kurma_core.errors import KurmaError

        code = 0
        references = tuple(dict.fromkeys(references))
        for reference in references:
            try:
                result = action(reference)
                code = code or (result if isinstance(result, int) else 0)
            except KurmaError as error:
                if len(references) == 1:
                    raise
                self.problem(error)
                code = code or error.exit_code
        return code

    # -- the caller's descriptors --

    def stdio(self) -> Stdio:
        """The caller's descriptors. Flushes our output first, since other processes will write to them."""
        from kurma_core.models.streams import Stdio

        self.out.flush()
        sys.stderr.flush()
        return Stdio(0, 1, 2, terminal=os.isatty(0))
