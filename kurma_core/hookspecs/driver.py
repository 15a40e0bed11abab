"""Drivers of every kind: what a hook returns, what a driver is made with, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.linux.process import ProcessIdentity

Json = Any
D = TypeVar("D", covariant=True)


@frozen
class Option:
    """One key of a driver's ``config`` in ``kurma.yml``.

    :param type: ``str``, ``int``, ``float``, ``bool``, ``list`` or ``dict``; a value of another type is an error.
    :param default: what the driver sees when the key is absent.
    :param least: of a number, as ``most``; None: any. A ``float`` is never infinite, nor what is no number.
    :param choices: the values that are allowed; empty: all of that type.
    """

    name: str
    type: type
    default: Json
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[Json, ...] = ()


@frozen
class HostTree:
    """An image that was verified to run with host privilege.

    :param id: ``sha512-…``. :param path: its root filesystem, extracted: to be read, and never written.
    """

    id: str
    path: str
    manifest: ImageManifest


@frozen
class HostProgram:
    """A program to be run on the host's own root, with all of its power.

    :param argv: the program's path, absolute, and its arguments.
    :param environment: all of it; nothing is inherited.
    :param cgroup: in which it is born, relative to each hierarchy's root; made already. Empty: the caller's.
    :param fds: number in the program → descriptor of the caller. 0, 1 and 2 are ``/dev/null`` unless given; every
        other one is closed.
    :param parent_death_signal: sent to it when this process ends, however it does; None: it goes on.
    :param new_session: it leads a session of its own, so that the caller's terminal is not its own.
    :param controlling_tty: descriptor 0 is the terminal of that session.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    cgroup: str = ""
    fds: Mapping[int, int] = field(default_factory=dict)
    parent_death_signal: int | None = None
    new_session: bool = False
    controlling_tty: bool = False


class Started(Protocol):
    """A started program, a child of the caller's. ``pidfd`` holds it; the caller closes it."""

    @property
    def pid(self) -> int: ...
    @property
    def identity(self) -> ProcessIdentity: ...
    @property
    def pidfd(self) -> int: ...


def _no_programs(program: HostProgram) -> Started:
    from kurma_core.errors import HostError

    raise HostError(f"no programs can be started here: {program.argv[0]}")


def _no_images(locator: str) -> HostTree:
    from kurma_core.errors import HostError

    raise HostError(f"no images can be had here: {locator}")


@frozen
class DriverContext:
    """What a driver is made with.

    :param config: the admin's section for it, checked against its options, defaults filled in.
    :param state_dir: a directory of its own under the state directory, for what must outlive the process; not
        yet made (the driver makes it, mode 0700, when it writes).
    :param registries: the ``registries`` section of ``kurma.yml``: ``insecure`` (list of host[:port]),
        ``mirrors`` (registry name → list of host[:port]).
    :param auth_dir: directory of credentials (``auth.d``), which may not exist.
    :param note: tell the user something in one line, on standard error.
    :param host_image: finds an image by its locator, fetches it if need be, and verifies it as one that runs with
        host privilege; raises TrustError, FetchError, StoreError. Not for fetchers and renderers.
    :param start_program: starts a program on the host, with threads about or without; returns once it has been
        executed; raises CommandNotFoundError, CommandNotExecutableError, HostError.
    :param daemon: this process serves many commands: what is done once per start of the daemon is done anew.
    """

    config: Mapping[str, Json]
    state_dir: str
    registries: Mapping[str, Json] = field(default_factory=dict)
    auth_dir: str = "/etc/kurma/auth.d"
    note: Callable[[str], None] = print
    host_image: Callable[[str], HostTree] = _no_images
    daemon: bool = False
    start_program: Callable[[HostProgram], Started] = _no_programs


@frozen
class Driver(Generic[D]):
    """What a hook returns: how to make the driver, and what it may be configured with.

    :param create: called at most once per process, when the driver is first needed.
    :param options: the keys of its section; unknown keys are refused, naming the nearest known one.
    :param aliases: further names that configuration may use for it (a network's ``aci`` names).
    :param runs_images: it serves every network whose ``aci`` no plugin answers to: the locator of an image, which
        stands as ``aci`` in the configuration that the driver gets. One plugin of a host does.
    """

    create: Callable[[DriverContext], D]
    options: tuple[Option, ...] = ()
    aliases: tuple[str, ...] = ()
    runs_images: bool = False
