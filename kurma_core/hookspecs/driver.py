"""Drivers of every kind: the value that a hook returns, the arguments of its factory, and its options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.linux.process import ProcessIdentity

#: Any value that JSON can hold.
Json = Any
#: The kinds of locators, for :attr:`Driver.locators`.
LOCATORS = ("path", "address", "name")


@frozen
class Option:
    """One key of a driver's ``config`` in ``kurma.yml``.

    :param name: the key.
    :param type: ``str``, ``int``, ``float``, ``bool``, ``list`` or ``dict``; a value of another type is an error.
    :param default: the value for the driver if the key is absent.
    :param help: one line for people: what the option does, with units.
    :param least: the smallest number allowed; None: no bound. A ``float`` must be finite.
    :param most: the largest number allowed; None: no bound.
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
class HostCheck:
    """Whether this host has something that a plugin needs (``kurma_checks``).

    :param name: in a few words. :param ok: whether the host has it.
    :param detail: what is missing, or what was found; also that the hint takes effect after a reboot, or what else
        it changes.
    :param hint: a command, or what to change (options of a container engine); ignored if ``ok``. People paste it:
        it must not reboot, and must not weaken the host.
    """

    name: str
    ok: bool
    detail: str = ""
    hint: str = ""


def setting_hint(name: str, value: str) -> str:
    """A hint for :class:`HostCheck` to change a setting of the kernel, now and at each boot.

    :param name: as ``sysctl`` has it, with dots. :param value: the new value.
    :returns: a command, which can be repeated.
    """
    file = f"/etc/sysctl.d/50-kurma-{name}.conf"
    return f"mkdir -p /etc/sysctl.d && echo {name}={value} > {file} && sysctl -p {file}"


def module_hint(name: str) -> str:
    """A hint for :class:`HostCheck` to load a module of the kernel, now and at each boot.

    :param name: of the module.
    :returns: a command, which can be repeated.
    """
    file = f"/etc/modules-load.d/kurma-{name}.conf"
    return f"modprobe {name} && mkdir -p /etc/modules-load.d && echo {name} > {file}"


def kernel_hint() -> str:
    """A hint for :class:`HostCheck` to install Debian's newest kernel, which takes effect after a reboot.

    :returns: a command.
    """
    import os

    return f"apt-get install linux-image-{'arm64' if os.uname().machine == 'aarch64' else 'amd64'}"


@frozen
class HostTree:
    """An image that was verified to run with host privilege.

    :param id: ``sha512-…``. :param path: its extracted root filesystem, which must never be written to.
    :param manifest: the image's manifest.
    """

    id: str
    path: str
    manifest: ImageManifest


@frozen
class HostProgram:
    """A program to run in the host's own root, as root.

    :param argv: the program's absolute path, and its arguments.
    :param environment: the whole environment; the program inherits no variable.
    :param directory: its working directory.
    :param cgroup: an existing cgroup for the program, relative to each hierarchy's root. Empty: the caller's.
    :param fds: number in the program → descriptor of the caller. 0, 1 and 2 are ``/dev/null`` unless given; every
        other descriptor is closed.
    :param parent_death_signal: the kernel sends it to the program when this process ends; None: no signal.
    :param new_session: the program leads a session of its own, so it does not share the caller's terminal.
    :param controlling_tty: descriptor 0 becomes the controlling terminal of that session.
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
    """A started program, a child of the caller's process."""

    @property
    def pid(self) -> int:
        """Its process ID."""
        ...

    @property
    def identity(self) -> ProcessIdentity:
        """By it, another process finds the program again."""
        ...

    @property
    def pidfd(self) -> int:
        """A descriptor that holds the process; the caller closes it."""
        ...


def _no_programs(program: HostProgram) -> Started:
    from kurma_core.errors import HostError

    raise HostError(f"no programs can be started here: {program.argv[0]}")


def _no_images(locator: str) -> HostTree:
    from kurma_core.errors import HostError

    raise HostError(f"no images can be had here: {locator}")


@frozen
class DriverContext:
    """Arguments of a driver's factory (:attr:`Driver.create`).

    :param config: the driver's section of the configuration, checked against its options, with defaults filled in.
    :param state_dir: the driver's own directory under the state directory, for data that must outlive the process.
        It may not exist yet: the driver makes it, mode 0700, when it first writes.
    :param state_root: the state directory, for checks of its file system; it may not exist yet. The core owns it.
    :param registries: the ``registries`` section of ``kurma.yml``: ``insecure`` (list of host[:port]),
        ``mirrors`` (registry name → list of host[:port]).
    :param auth_dir: directory of credentials (``auth.d``), which may not exist.
    :param note: prints a note for the user, one line on standard error.
    :param host_image: finds an image by its locator, fetches it if need be, and verifies that it may run with
        host privilege (docs/howto/trust.md); raises TrustError, FetchError, StoreError. Not for fetchers and
        renderers.
    :param start_program: starts a program on the host, also if this process has threads; returns once the program
        has been executed; raises CommandNotFoundError, CommandNotExecutableError, HostError.
    :param daemon: this process is kurmad and serves many commands; work that belongs to each start of the daemon
        is to be done again.
    """

    config: Mapping[str, Json]
    state_dir: str
    state_root: str = ""
    registries: Mapping[str, Json] = field(default_factory=dict)
    auth_dir: str = "/etc/kurma/auth.d"
    note: Callable[[str], None] = print
    host_image: Callable[[str], HostTree] = _no_images
    daemon: bool = False
    start_program: Callable[[HostProgram], Started] = _no_programs


@frozen
class Driver:
    """Returned by a hook: the driver's factory and its options.

    :param create: the factory; called at most once per process, when the driver is first needed. It is quick and
        changes nothing: ``kurma plugins list`` makes every driver.
    :param options: the keys of the driver's section; the core refuses unknown keys, and names the nearest known
        one.
    :param aliases: further names for the driver in the configuration: a network entry's ``aci`` is compared with
        them first.
    :param runs_images: the driver serves every network whose ``aci`` no plugin declares as an alias: there ``aci``
        is the locator of an image. At most one plugin of a host does this.
    :param locators: of a fetcher: the kind of REST in its locators ``SCHEME:REST``, one of :data:`LOCATORS`. The
        core makes a ``path`` absolute; it passes an ``address`` or a ``name`` on unchanged.
    :param example: of a fetcher: a locator for hints, such as ``SCHEME://HOST/NAME:TAG``.
    :param help: of a command: its line in ``kurma --help``.
    :param annotations: of a fetcher: prefixes of the annotations that it understands. The core asks this fetcher
        what an image with such an annotation expects, whichever fetcher brought the image.
    :param isolators: of an isolator plugin: the isolators that it compiles (``os/linux/oom-score-adj``). The
        plugin is loaded only for a pod that has one of them, or if it has defaults.
    :param default_isolators: those of them that the hook ``defaults`` may return.
    :param exclusive: sets of them: an app, or a pod, may have only one isolator of each set.
    :param gated: those of them that ask for powers (hook ``powers``), each with the parts that a grant can name;
        None: any part is valid (paths).
    """

    create: Callable[[DriverContext], object]
    options: tuple[Option, ...] = ()
    aliases: tuple[str, ...] = ()
    runs_images: bool = False
    locators: str = "address"
    example: str = ""
    help: str = ""
    annotations: tuple[str, ...] = ()
    isolators: tuple[str, ...] = ()
    default_isolators: tuple[str, ...] = ()
    exclusive: tuple[frozenset[str], ...] = ()
    gated: Mapping[str, Collection[str] | None] = field(default_factory=dict)
