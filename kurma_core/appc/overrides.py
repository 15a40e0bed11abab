"""Changes of single values of an image's app, and a pod's DNS settings.

A pod file writes them as keys of the app and of the pod, an API client as ``apps`` and ``dns`` of its request, and
the command line as options: all of them make these values.
"""

from __future__ import annotations

from kurma_core.appc.types import absolute_path, environment_name, nonempty, word
from kurma_core.errors import ManifestError
from kurma_core.models.isolator import MAX_ID
from kurma_core.schema import JsonValue, Pairs, Plain, SchemaError, Text, Whole
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.appc.image import EventHandler, MountPoint, Port

    GroupId = int
    Nonempty = str
    Path = str
else:
    GroupId = Whole(0, MAX_ID)
    Nonempty = Text(nonempty)
    Path = Text(absolute_path)


class _Parts(Plain):
    """A list in the form that an image's ``app`` has it under that key.

    :param key: ``ports``, ``mountPoints`` or ``eventHandlers``.
    """

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        super().__init__(list)
        self.key = key

    def read(self, value: Any, path: str) -> Any:
        from kurma_core.appc import image  # few requests change such parts
        from kurma_core.appc.manifest_reader import Reader, refuse_unknown

        readers: dict[str, Any] = {
            "ports": image.read_ports,
            "mountPoints": image.read_mount_points,
            "eventHandlers": image.read_handlers,
        }
        outer = path.removesuffix(f".{self.key}")
        try:
            return readers[self.key](Reader({self.key: value}, outer, refuse_unknown))
        except ManifestError as error:
            data = error.data
            if "expected" not in data:  # an unknown key: its message names it
                raise
            raise SchemaError(str(data["path"]), str(data["expected"]), str(data["found"])) from None

    def write(self, value: Any) -> Any:
        return [part.to_json() for part in value]


_ENVIRONMENT = Pairs(("name", "value"), Text(environment_name), Text(word))
_ISOLATORS = Pairs(("name", "value"), Nonempty, object)


@frozen
class AppOverrides(JsonValue):
    """Changes of one app's manifest by a pod file or a request. Null and empty: as the image has it.

    :param arguments: for an image whose conventions name an entrypoint, they follow it instead of ``exec``; for
        any other, they are appended to ``exec``.
    :param exec: replaces the whole command.
    :param user: without a ``group``, the user has its own groups from the image's files, and none of the app's.
    :param supplementary_gids: numbers of groups; added to the app's.
    :param environment: added; replaces variables of the same name.
    :param isolators: added; replaces isolators of the same name, and other forms of the same setting: a set to
        retain replaces a set to remove, for example.
    :param ports: added; replaces ports of the same name.
    :param mount_points: added; replaces mount points of the same name.
    :param event_handlers: added; replaces handlers of the same name.
    """

    PARTIAL = True

    arguments: tuple[str, ...] = field(default=(), key="args")
    exec: tuple[str, ...] = ()
    user: Nonempty | None = None
    group: Nonempty | None = None
    supplementary_gids: tuple[GroupId, ...] = field(default=(), key="supplementaryGIDs")
    working_directory: Path | None = None
    environment: tuple[tuple[str, str], ...] = field(default=(), shape=_ENVIRONMENT)
    isolators: tuple[tuple[str, Any], ...] = field(default=(), shape=_ISOLATORS)
    ports: tuple[Port, ...] = field(default=(), shape=_Parts("ports"))
    mount_points: tuple[MountPoint, ...] = field(default=(), shape=_Parts("mountPoints"))
    event_handlers: tuple[EventHandler, ...] = field(default=(), shape=_Parts("eventHandlers"))

    def __bool__(self) -> bool:
        return self != AppOverrides()

    def shortened(self) -> dict[str, Any]:
        """The JSON form without the keys that change nothing, as a pod file has it."""
        return {key: value for key, value in self.to_json().items() if value not in (None, [])}


@frozen
class DnsRequest(JsonValue):
    """Contents of ``/etc/resolv.conf``.

    :param exact: these contents alone, as they are written: nothing from the networks or the host, no limit.
    """

    PARTIAL = True

    nameservers: tuple[Nonempty, ...] = ()
    search: tuple[Nonempty, ...] = ()
    options: tuple[Nonempty, ...] = ()
    exact: bool = False

    @property
    def by_name(self) -> dict[str, tuple[str, ...]]:
        return {"nameservers": self.nameservers, "search": self.search, "options": self.options}
