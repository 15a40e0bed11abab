"""The secrets of an app in a pod's file and manifest: names of secrets, and how the app gets their values."""

from __future__ import annotations

from kurma_core.appc import types
from kurma_core.appc.manifest_reader import put
from kurma_core.errors import ManifestError
from kurma_core.schema import describe
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.appc.manifest_reader import Json, Reader

#: Where secrets are mounted by default, each under its name.
DIRECTORY = "/run/secrets"
#: Mode of a secret's file, as podman and Docker have it.
MODE = "0444"
_LONGEST = 253
_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_LETTERS = _FIRST | frozenset("._-")
_OCTAL = frozenset("01234567")
#: The highest ID of a user or group.
_HIGHEST = 2**32 - 2
#: The rule for names, for hints.
NAMES = f"1 to {_LONGEST} letters, digits, '.', '_' and '-', the first of them a letter or digit"


def is_secret_name(name: str) -> bool:
    """Whether a secret may have that name."""
    return 0 < len(name) <= _LONGEST and name[0] in _FIRST and _LETTERS.issuperset(name)


@frozen
class AppSecret:
    """One secret of an app: a file, or a variable of its environment. It never has the value.

    :param name: name of the secret.
    :param target: path of the file in the app; None: it is a variable.
    :param environment: name of the variable; None: it is a file.
    :param uid: owner of the file, as the app sees it; ``gid``: its group.
    :param mode: of the file, octal digits.
    """

    name: str
    target: str | None = None
    environment: str | None = None
    uid: int = 0
    gid: int = 0
    mode: str = MODE

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {"name": self.name}
        put(out, "target", self.target)
        put(out, "environment", self.environment)
        put(out, "uid", self.uid, 0)
        put(out, "gid", self.gid, 0)
        put(out, "mode", self.mode, MODE)
        return out


def read_secrets(app: Reader) -> tuple[AppSecret, ...]:
    """Reads ``secrets`` of an app.

    :raises ManifestError: one is malformed, two have the same target, or a target is below another.
    """
    found = tuple(_read(item) for item in app.objects("secrets"))
    clashes = conflicts(found)
    if clashes:
        raise ManifestError(app.at("secrets"), "targets that differ, none below another", "; ".join(clashes))
    return found


def conflicts(secrets: Iterable[AppSecret]) -> list[str]:
    """Describes each pair of secrets that an app cannot have together: for errors."""
    found: list[str] = []
    had: list[AppSecret] = []
    for one in secrets:
        for other in had:
            if (one.environment, one.target) == (other.environment, other.target):
                what = f"the file {one.target}" if one.environment is None else f"the variable {one.environment}"
                said = f"{what} of {other.name} and {one.name}" if one.name != other.name else f"{what} twice"
                found.append(said)
            elif one.target is not None and other.target is not None:
                for upper, lower in ((one, other), (other, one)):
                    if str(lower.target).startswith(f"{upper.target}/"):
                        found.append(
                            f"{lower.target} of {lower.name} below the file {upper.target} of {upper.name}"
                        )
        had.append(one)
    return found


def _read(reader: Reader) -> AppSecret:
    name = reader.string("name", _name, "the secret's name")
    variable = reader.optional("environment", types.environment_name)
    if variable is not None:
        for key in ("target", "uid", "gid", "mode"):
            if (value := reader.take(key)) is not None:
                raise ManifestError(reader.at(key), f"no {key} beside environment", describe(value))
        secret = AppSecret(name, environment=variable)
    else:
        secret = AppSecret(
            name,
            reader.optional("target", _target) or f"{DIRECTORY}/{name}",
            uid=reader.integer("uid", 0, _HIGHEST, 0),
            gid=reader.integer("gid", 0, _HIGHEST, 0),
            mode=reader.optional("mode", _mode) or MODE,
        )
    for key in reader.extra():
        raise ManifestError(reader.at(key), "name, target, environment, uid, gid or mode", describe(key))
    return secret


def _name(value: object, path: str) -> str:
    name = types.text(value, path)
    if not is_secret_name(name):
        raise ManifestError(path, f"a secret's name ({NAMES})", describe(value))
    return name


def _target(value: object, path: str) -> str:
    """An absolute path, or one below :data:`DIRECTORY`."""
    text = types.nonempty(value, path)
    whole = types.inner_path(text if text.startswith("/") else f"{DIRECTORY}/{text}", path)
    target = "/" + "/".join(part for part in whole.split("/") if part not in ("", "."))
    if target == "/" or whole.endswith("/"):
        raise ManifestError(path, "the path of a file", describe(value))
    return target


def _mode(value: object, path: str) -> str:
    mode = types.text(value, path)
    if not (mode and len(mode) <= 4 and _OCTAL.issuperset(mode) and int(mode, 8) <= 0o777):
        raise ManifestError(path, f'a mode in octal digits ("{MODE}")', describe(value))
    return mode
