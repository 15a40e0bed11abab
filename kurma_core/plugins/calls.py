"""Calls of drivers: errors name the plugin and the hook, and each answer is checked.

:meth:`Source.bound` makes the object that stands for a driver: an instance of the specification of its kind whose
``__dict__`` has one function for each hook that the driver implements. The function passes the arguments that the
driver takes and leaves out the others, so that a driver goes on working when the core adds an argument. A hook
that the driver lacks is the method of the specification.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import copy_context
from time import monotonic, sleep

from kurma_core.config.schema import singular
from kurma_core.errors import Cancelled, HostError, KurmaError, PluginError, PluginSkipped
from kurma_core.hookspecs import Hooks, ModuleHooks, Stream, field_types, wrong_field
from kurma_core.linux.process import start_thread
from kurma_core.plugins import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import Context
    from typing import Any, TypeVar

    from kurma_core.hookspecs import Answer, Hook
    from kurma_core.hookspecs.driver import Driver, DriverContext, HostCheck

    H = TypeVar("H", bound=Hooks)
    #: By hook, the arguments that a class takes.
    Taken = Mapping[str, Sequence[str]]

#: A stream has no marks that could be checked.
_STREAM: Taken = {hook.name: hook.arguments for hook in Stream.HOOKS.values()}
#: Characters of a plugin's message that are shown.
_LONGEST = 500
_INTERRUPTIONS = (KeyboardInterrupt, Cancelled)
_MISTAKE = "this is a mistake in the plugin"
#: Seconds until a call is noted as slow; it is noted again whenever its time has doubled.
SLOW = 10.0


class SlowCalls:
    """Notes calls of plugins that take long. A thread of its own looks at them, and ends when there are none.

    :param note: gets the lines, in the context of the call: that of the client who waits for it.
    :param log: gets them, too, in no context; None: nothing does.
    :param after: seconds until a call is noted.
    """

    def __init__(
        self, note: Callable[[str], None], log: Callable[[str], None] | None = None, after: float = SLOW
    ) -> None:
        self._after = after
        self._note = note
        self._log = log
        self._lock = allocate_lock()
        self._watched = False
        #: By a key of its own, each call under way: what it is, when it began, when it is next noted, its context.
        self._calls: dict[object, tuple[str, float, float, Context]] = {}

    def watch(self, what: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Calls ``call``. :param what: the plugin and its hook: ``network plugin 'NAME' of DISTRIBUTION: add``."""
        key, now = object(), monotonic()
        with self._lock:
            self._calls[key] = what, now, self._after, copy_context()
            if not self._watched:
                self._watched = True
                try:
                    start_thread(self._look)
                except RuntimeError:
                    self._watched = False  # the host allows no more threads: the call goes on unwatched
        try:
            return call(*arguments, **named)
        finally:
            with self._lock:
                del self._calls[key]

    def _look(self) -> None:
        while True:
            sleep(self._after / 5)
            found = []
            with self._lock:
                if not self._calls:
                    self._watched = False
                    return
                for key, (what, begun, noted_at, context) in self._calls.items():
                    taken = monotonic() - begun
                    if taken >= noted_at:
                        self._calls[key] = what, begun, 2 * taken, context
                        found.append((f"{what} has taken {taken:.0f} s", context.copy()))
            for line, context in found:
                try:
                    context.run(self._note, line)
                    if self._log is not None:
                        self._log(line)
                except Exception:  # noqa: BLE001, S110 - the client has gone, or standard error is closed
                    pass


class Source:
    """The plugin that a driver comes from.

    :param plugin: distribution and version, for errors.
    :param known: by :func:`class_key`, what the index remembers of the plugin's classes.
    :param keep: called with each class that was checked, and the hooks that it takes.
    :param trace: gets a line for each call; None: calls are not traced.
    :param daemon: the plugin works in kurmad, which logs where it fails.
    :param slow: notes its calls that take long; None: they may take long.
    """

    __slots__ = ("_daemon", "_keep", "_known", "_slow", "_trace", "group", "name", "plugin")

    def __init__(
        self,
        group: str,
        name: str,
        plugin: str,
        known: Mapping[str, Taken] | None = None,
        keep: Callable[[type, type[Hooks], Taken], None] = lambda cls, kind, taken: None,
        trace: Callable[[str], None] | None = None,
        daemon: bool = False,
        slow: SlowCalls | None = None,
    ) -> None:
        self._daemon = daemon
        self._slow = slow
        self.group = group
        self.name = name
        self.plugin = plugin
        self._known = dict(known or {})
        self._keep = keep
        self._trace = trace

    def __str__(self) -> str:
        return f"{called(self.group, self.name)} of {self.plugin}"

    def made(self, declaration: Driver, context: DriverContext) -> Any:
        """Makes the driver with that context, and the object that stands for it.

        :raises TypeError: it does not fulfil the contract of its kind.
        :raises Exception: whatever its factory raises.
        """
        driver = self.bound(contract.kinds(self.group), declaration.create(context))
        contract.check_declared(self.group, declaration, driver)
        return driver

    def bound(self, kinds: Sequence[type[H]], driver: object) -> H:
        """Checks an object of the plugin, unless its class is known, and makes the one that stands for it.

        :param kinds: the driver implements one of these.
        :raises TypeError: it implements none.
        """
        if isinstance(driver, Hooks) and "_driver" in vars(driver):
            return driver  # type: ignore[return-value]  # bound before
        cls = type(driver)
        for kind in kinds:
            if kind is Stream:
                return self._bind(kind, driver, _STREAM)
            taken = self._known.get(class_key(cls, kind))
            if taken is not None and kind.HOOKS.keys().isdisjoint(getattr(driver, "__dict__", ())):
                return self._bind(kind, driver, taken)
        kind, taken = contract.taken(kinds, driver)
        bound = self._bind(kind, driver, taken)
        self._known[class_key(cls, kind)] = taken
        self._keep(cls, kind, taken)
        return bound

    def bound_object(self, kind: type[H], found: object) -> H:
        """As :meth:`bound`, for an object that a hook returned."""
        return self.bound((kind,), found)

    def _bind(self, kind: type[H], driver: object, taken: Taken) -> H:
        bound = object.__new__(kind)
        own = vars(bound)
        own["_driver"] = driver
        own["_source"] = self
        for name, answer in kind.ATTRIBUTES.items():
            own[name] = value = getattr(driver, name)
            if not answer.accepts(value):
                raise TypeError(f"its {type(driver).__name__}.{name} is {shown(value)}, not {answer.text}")
        for name, arguments in taken.items():
            own[name] = self._call(kind.HOOKS[name], getattr(driver, name), tuple(arguments))
        return bound

    def checks(self, module: object) -> Callable[[DriverContext], Sequence[HostCheck]] | None:
        """The ``kurma_checks`` of the plugin's module; None: it has none.

        :raises TypeError: it breaks its contract.
        """
        function = getattr(module, contract.CHECKS, None)
        if function is None:
            return None
        hook = ModuleHooks.HOOKS[contract.CHECKS]
        return self._call(hook, function, contract.module_arguments(hook.name, function))

    def _call(self, hook: Hook, function: Callable[..., Any], takes: tuple[str, ...]) -> Callable[..., Any]:
        call = _call(hook, function, takes, self)
        if self._slow is not None:
            call = _watched(call, f"{self}: {hook.name}", self._slow)
        return call if self._trace is None else _traced(call, f"{self.group}/{self.name} {hook.name}", self._trace)

    def failed(self, call: str, error: BaseException) -> BaseException:
        """Makes the caller's error of an exception that the plugin should not raise."""
        found: KurmaError | None = HostError.of_shortage(error)
        if isinstance(error, PluginSkipped):
            found = PluginError(f"{self} cannot work on this host: {line(error)}")
        elif found is None:
            number = {"errno": error.errno} if isinstance(error, OSError) else {}
            found = PluginError(
                f"{self} failed in {call}: {said(error)}", hint=mistake(error, self._daemon), **number
            )
            if self._daemon:
                log_failure(found.message, error)
        found.data.update(plugin=f"{self.group}/{self.name}", call=call)
        return found

    def wrong(self, hook: Hook, answer: object) -> PluginError:
        """Makes the error of an answer of another type."""
        return PluginError(
            f"{self} answered {hook.name} with {_unlike(answer, hook.answer)}",
            hint=_MISTAKE,
            plugin=f"{self.group}/{self.name}",
            call=hook.name,
        )


def source_of(driver: Hooks) -> Source | None:
    """The plugin of a bound driver; None: it is an object of the core."""
    found: Source | None = vars(driver).get("_source")
    return found


def plugin_error(driver: Hooks, what: str) -> PluginError:
    """Makes the error of a plugin that fulfils its contract in form, but not in meaning.

    :param what: follows the plugin's name: ``returned for image x: no layer``.
    """
    source = source_of(driver)
    name = type(driver).__module__ if source is None else f"{source.group}/{source.name}"
    message = " ".join(f"{name if source is None else source} {what}".split())
    return PluginError(message, hint=_MISTAKE, plugin=name)


def mistake(error: BaseException, daemon: bool) -> str:
    """The hint of an exception that a plugin should not raise. :param daemon: in kurmad."""
    if _raised_by_the_core(error):
        return _MISTAKE  # the message says it all
    return f"{_MISTAKE}; {'the log of kurmad' if daemon else '`kurma --debug …`'} shows where"


def log_failure(message: str, error: BaseException) -> None:
    """Logs an exception that a plugin raised in kurmad, with its trace."""
    from logging import getLogger

    trace = None if _raised_by_the_core(error) else error
    getLogger("kurmad").error("%s", message, exc_info=trace)


def class_key(cls: type, kind: type[Hooks]) -> str:
    """The key of a checked class: ``MODULE:CLASS KIND``."""
    return f"{cls.__module__}:{cls.__qualname__} {kind.__name__}"


def _call(hook: Hook, function: Callable[..., Any], takes: tuple[str, ...], source: Source) -> Callable[..., Any]:
    every, answer_type, expected = hook.arguments, hook.answer, hook.raises
    accepts, whole, unbinds = answer_type.accepts, takes == every, hook.takes_objects

    def call(*arguments: Any, **named: Any) -> Any:
        if not whole:  # leave out what the plugin does not take
            named.update(zip(every, arguments, strict=False))
            arguments, named = (), {name: named[name] for name in takes if name in named}
        if unbinds:  # a plugin gets its own object back
            arguments = tuple(map(_own, arguments))
            named = {name: _own(value) for name, value in named.items()}
        try:
            answer = function(*arguments, **named)
            if not accepts(answer):
                raise source.wrong(hook, answer)
            if answer_type.bind is not None:
                return answer_type.bind(answer, source.bound_object)
        except KurmaError as error:  # in the plugin's own words
            error.data.setdefault("call", f"{source.group}/{source.name} {hook.name}")
            raise
        except expected:
            raise
        except BaseException as error:
            if interrupts(error):
                raise
            raise source.failed(hook.name, error) from error
        return answer

    call.__name__ = hook.name
    return call


def _own(value: Any) -> Any:
    return vars(value).get("_driver", value) if isinstance(value, Hooks) else value


def _watched(call: Callable[..., Any], what: str, slow: SlowCalls) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        return slow.watch(what, call, *arguments, **named)

    watched.__name__ = call.__name__
    return watched


def _traced(call: Callable[..., Any], what: str, trace: Callable[[str], None]) -> Callable[..., Any]:
    """Traces the time and the type of the outcome of each call; no values, which may be secrets."""
    from time import perf_counter

    def traced(*arguments: Any, **named: Any) -> Any:
        begun, outcome = perf_counter(), ""
        try:
            answer = call(*arguments, **named)
            outcome = type(answer).__name__
            return answer
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            trace(f"{what}: {(perf_counter() - begun) * 1000:.1f} ms, {outcome}")

    traced.__name__ = call.__name__
    return traced


# --- words -----------------------------------------------------------------------------------------------------


def called(group: str, name: str) -> str:
    """A plugin in messages: ``network plugin 'NAME'``."""
    return f"{singular(group)} plugin {name!r}"


def said(error: BaseException) -> str:
    """The exception in one line."""
    text = line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line(error: BaseException) -> str:
    """Its message on one line, cut to a readable length."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 (a plugin's exception may fail even there)
        return ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def shown(value: object) -> str:
    """A value of a plugin in one line, cut to a readable length."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 (a plugin's object may fail even there)
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _unlike(value: object, expected: Answer) -> str:
    """Describes why a hook's type does not accept the value."""
    for name, answer in field_types(type(value)).items():
        found = getattr(value, name)
        if not answer.accepts(found):
            return f"a {type(value).__name__} whose {name} is {_unlike(found, answer)}"
    several = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
    for one in several:
        if why := wrong_field(one):
            return f"a wrong {type(one).__name__}: {why}"
    return f"{shown(value)}, not {expected.text}"


def interrupts(error: BaseException) -> bool:
    """Whether a signal (Ctrl-C) or a cancellation raised it while the plugin ran, and not the plugin.

    The code that raised it tells: the handlers of signals and the waits of operations are the core's. Without a
    handler, Python raises KeyboardInterrupt itself, in the main thread.
    """
    found: BaseException | None = error
    while isinstance(found, _INTERRUPTIONS):
        if _raised_by_the_core(found) or (isinstance(found, KeyboardInterrupt) and _may_python_interrupt()):
            return True
        found = found.__cause__ or found.__context__  # a plugin raised it because of another one
    return False


def _raised_by_the_core(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "kurma_core"


def _may_python_interrupt() -> bool:
    """Whether Python raises KeyboardInterrupt in this thread at Ctrl-C."""
    import signal
    import threading

    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
