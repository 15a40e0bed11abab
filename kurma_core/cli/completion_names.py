"""Finds names for completion: of pods, apps, images and volumes, and those that plugins and the configuration
give.

Pods, images and volumes are read from the files of the state directory, or asked of kurmad where the user may not
read those. Names that depend on the configuration or on plugins need a client, which takes long: they are kept in
a file (:meth:`Names.of_client`).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from kurma_core.cli.session import Session

#: The file of :meth:`Names.of_client`.
_KEPT = "completion"
_KEPT_SECONDS = 600
#: Kinds of the names in it.
_OF_CLIENT = ("commands", "isolators", "networks", "plugins", "stagers")
_STATE_DIR = "/var/lib/kurma"
_RUN_DIR = "/run/kurma"
_CONFIG_DIR = "/etc/kurma"
_UUID = 36
#: Seconds until a daemon's answer is given up.
_PATIENCE = 2.0


class Names:
    """The names on this host.

    :param given: the values of the line's global options; None: it does not have the option.
    """

    def __init__(self, given: Mapping[str, str | None]) -> None:
        self._given = given

    # --- pods and images -----------------------------------------------------------------------------------------

    def pods(self, beginning: str, live: bool | None) -> list[str]:
        """Names of pods; UUIDs if no name begins so.

        :param live: only live pods, or only others, if there are any; None: all.
        """
        from kurma_core.models import LIVE_STATES

        directory = self._readable("pods")
        if directory is None:
            pods = self._asked("listing")
            states = {pod["name"]: pod["state"] for pod in pods}
            names, uuids = list(states), [pod["uuid"] for pod in pods]
        else:
            states = {}
            names = _listed(f"{directory}/names")
            uuids = [name for name in _listed(directory) if len(name) == _UUID]
        names = sorted(name for name in names if name.startswith(beginning))
        if live is None:
            return names or uuids
        found = [
            name
            for name in names
            if ((states.get(name) or _state(f"{directory}/names/{name}")) in LIVE_STATES) is live
        ]
        return found or names or uuids

    def apps(self, pod: str) -> Sequence[str]:
        """:param pod: its name, or the beginning of its UUID."""
        from kurma_core.formats.small_json import decode

        directory = self._readable("pods")
        if directory is None:
            pods = self._asked("listing")
            found = [one for one in pods if one["name"] == pod] or [
                one for one in pods if len(pod) > 3 and one["uuid"].startswith(pod)
            ]
            return found[0]["apps"] if len(found) == 1 else ()
        place = f"{directory}/names/{pod}"
        if not os.path.isdir(place):
            places = [name for name in _listed(directory) if name.startswith(pod)] if len(pod) > 3 else []
            if len(places) != 1:
                return ()
            place = f"{directory}/{places[0]}"
        with open(f"{place}/pod.json", "rb") as file:
            return [app["name"] for app in decode(file.read())["manifest"]["apps"]]

    def images(self) -> list[str]:
        """Names of images, and the addresses that they were fetched from."""
        directory = self._readable("images/images")
        if directory is None:
            return sorted({image["name"] for image in self._asked("images")})
        found = set()
        for image in _listed(directory):
            try:
                with open(f"{directory}/{image}/image.json", "rb") as file:
                    text = file.read()
            except OSError:
                continue
            found.update(_strings(text, b'\n "name": "')[:1])
            found.update(word for word in _strings(text, b'"locator": "') if "://" in word)
        return sorted(name for name in found if not name.startswith("file://"))

    def secrets(self) -> list[str]:
        directory = self._readable("secrets")
        if directory is None or os.geteuid() != 0:
            return sorted(secret["name"] for secret in self._asked("secrets"))
        return sorted(name for name in _listed(directory) if not name.startswith("."))

    def volumes(self) -> list[str]:
        """Names of named volumes."""
        directory = self._readable("volumes")
        if directory is None:
            return sorted(volume["name"] for volume in self._asked("volumes"))
        return sorted(name for name in _listed(directory) if not name.startswith("."))

    def _readable(self, name: str) -> str | None:
        """A directory of the state directory; None: a daemon must be asked, since the user may not read it, or the
        line names a daemon."""
        state = self._state_dir()
        if self._host() not in (None, "local") or (
            os.path.isdir(state) and not os.access(state, os.R_OK | os.X_OK)
        ):
            return None
        return f"{state}/{name}"

    def _asked(self, what: str) -> Any:
        """kurmad's answer. The client proper would take as long as `kurma list`.

        :raises OSError: no kurmad answers at once. :raises ValueError: it refuses.
        """
        import _socket

        from kurma_core.formats.small_json import decode

        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.settimeout(_PATIENCE)
        connection.connect(self._socket())
        # HTTP/1.0: the answer ends with the connection.
        connection.send(f"GET /v1/{what} HTTP/1.0\r\nHost: kurmad\r\n\r\n".encode())
        pieces = []
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
        head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\n")[0]:
            raise ValueError("kurmad refuses")
        return decode(body)

    # --- names of the configuration and of plugins ---------------------------------------------------------------

    def of_client(self, kind: str) -> Sequence[tuple[str, str]]:
        """Names that only a client knows, and their descriptions. They are kept until a file of the configuration
        or the index of plugins changes, and ten minutes at most, in the state directory, or in the cache of a user
        who may not write there.

        :param kind: commands, isolators, networks, plugins (as ``KIND/NAME``) or stagers.
        """
        state = self._state_dir()
        # sudo may keep HOME: root neither reads nor writes in a directory of another user.
        own = os.geteuid() == 0 or os.access(state, os.W_OK)
        directory = state if own else f"{_user_cache()}/kurma"
        stamp = self._stamp(state)
        try:
            with open(f"{directory}/{_KEPT}", encoding="utf-8") as kept:
                first, *lines = kept.read().split("\n")
                if first == stamp and 0 <= _now() - os.fstat(kept.fileno()).st_mtime < _KEPT_SECONDS:
                    return [(word, help) for of, word, help in (one.split("\t") for one in lines) if of == kind]
        except (OSError, ValueError):
            pass
        found: dict[str, list[tuple[str, str]]] = {}
        failed = False
        for one in _OF_CLIENT:
            try:
                found[one] = list(self._computed(one))
            except Exception:  # noqa: BLE001 (one plugin's mistake does not hide the other names)
                found[one], failed = [], True
        if not failed:
            # The client may have written the index of plugins.
            texts = [self._stamp(state), *("\t".join((of, *each)) for of, all in found.items() for each in all)]
            _keep(directory, "\n".join(texts), make=not own)
        return found[kind]

    def _stamp(self, state: str) -> str:
        """Changes with each file of the configuration, and with the installed plugins."""
        files = [*_config_files(self._config()), f"{state}/plugins.json"]
        return " ".join((self._host() or "", *(f"{file}:{_changed(file)}" for file in files)))

    def _computed(self, kind: str) -> Iterator[tuple[str, str]]:
        with self.session() as session:
            if kind == "commands":
                from kurma_core.cli.plugin_commands import PluginCommands

                listing = PluginCommands(lambda _: session, {}).listing()
                yield from ((name, " ".join(help.split())) for name, help in listing)
            elif kind == "isolators":
                yield from ((one.name, "") for one in session.client.isolators())
            elif kind == "networks":
                yield from ((one.name, "") for one in session.client.networks_list())
            elif kind == "plugins":
                yield from ((f"{one.kind}/{one.name}", "") for one in session.client.plugins(load=False))
            elif kind == "stagers":
                yield from ((one.name, "") for one in session.client.stagers())

    def session(self) -> Session:
        """A session with the line's global options."""
        from kurma_core.cli.session import Session

        given = {name: self._given[name] for name in ("dir", "config")}
        places = {name: os.path.expanduser(path) if path else None for name, path in given.items()}
        return Session({**self._given, **places, "debug": False})

    # --- places --------------------------------------------------------------------------------------------------

    def _config(self) -> str:
        return os.path.expanduser(self._given["config"] or os.environ.get("KURMA_CONFIG") or _CONFIG_DIR)

    def _state_dir(self) -> str:
        """As the line, the environment or the configuration gives it. The configuration is searched as text:
        parsing it would take longer than all the rest."""
        given = self._given["dir"] or os.environ.get("KURMA_DIR")
        return os.path.expanduser(given) if given else self._configured("state_dir") or _STATE_DIR

    def _configured(self, name: str) -> str:
        found = ""
        for file in _config_files(self._config()):
            with open(file, encoding="utf-8") as text:
                for line in text:
                    key, colon, value = line.partition(":")
                    if colon and key.strip(" \t{\"'") == name:
                        found = value.partition(" #")[0].strip(" \t\n\"',}") or found
        return found

    def _socket(self) -> str:
        """The path of the daemon's socket, as :func:`kurma_core.client.socket_path` finds it."""
        host = self._host()
        if host is not None and host != "local":
            path = host.removeprefix("unix:")
            return path[2:] if path.startswith("//") else path
        given = self._given["dir"] or os.environ.get("KURMA_DIR")
        state = self._state_dir()
        usual = _RUN_DIR if state == _STATE_DIR and not given else f"{state}/run"
        return f"{usual if given else self._configured('run_dir') or usual}/kurmad.sock"

    def _host(self) -> str | None:
        return self._given["host"] or os.environ.get("KURMA_HOST") or None


def _config_files(config: str) -> list[str]:
    if os.path.isfile(config):
        return [config]
    drop_ins = f"{config}/kurma.d"
    main = [file for name in ("yml", "yaml", "json") if os.path.isfile(file := f"{config}/kurma.{name}")]
    names = sorted(os.listdir(drop_ins)) if os.path.isdir(drop_ins) else []
    return main + [f"{drop_ins}/{name}" for name in names if name.endswith((".yml", ".yaml", ".json"))]


def _state(pod: str) -> str:
    """By its record, which is wrong for a moment after a crash."""
    try:
        with open(f"{pod}/state.json", "rb") as file:
            _, _, rest = file.read(100).partition(b'"state": "')
    except OSError:
        return ""
    return rest.partition(b'"')[0].decode(errors="replace")


def _strings(text: bytes, key: bytes) -> list[str]:
    """The strings after a key of a document that Kurma wrote, which may be damaged; those with escapes are left
    out."""
    found = (piece.partition(b'"') for piece in text.split(key)[1:])
    return [one.decode(errors="replace") for one, end, _ in found if end and b"\\" not in one]


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _keep(directory: str, text: str, *, make: bool) -> None:
    from kurma_core.linux.files import replace_file

    try:
        if make:
            os.makedirs(directory, 0o700, exist_ok=True)
        replace_file(f"{directory}/{_KEPT}", text.encode())
    except OSError:
        return  # it only saves time


def _user_cache() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")


def _now() -> float:
    import time

    return time.time()


def _changed(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0
