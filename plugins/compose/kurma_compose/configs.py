"""Files of apps whose contents are in the pod file, in ``configs``. ``kurma up`` keeps the contents as secrets.

A secret's name has a digest of the content: a pod with another content has changed, and pods that have the old one
keep it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kurma_core.errors import ManifestError, SecretNotFoundError, UsageError
from kurma_core.named_files import naming
from kurma_core.schema import child, describe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kurma_core.api.operations import Api

    Json = Any

#: The key of the file with contents by name, and the key of an app with the names that it gets as files.
CONFIGS = "configs"
#: Most bytes of a content: those of a secret.
LARGEST = 512 << 10
#: A name that is a part of a secret's name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{,199}")


def contents(value: Mapping[str, Json], place: str) -> dict[str, bytes]:
    """The contents in a file of several pods, by name.

    :param place: the file's path, for errors.
    :raises ManifestError: the value is malformed.
    """
    found = value.get(CONFIGS)
    with naming(place):
        if found is not None and not isinstance(found, dict):
            raise ManifestError(f"$.{CONFIGS}", "an object", describe(found))
        for name, text in (found or {}).items():
            path = child(f"$.{CONFIGS}", str(name))
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ManifestError(path, "letters, digits, '.', '_' and '-' in the name", describe(name))
            if not isinstance(text, str) or not text:
                raise ManifestError(path, "a text that is not empty", describe(text))
    return {name: text.encode() for name, text in (found or {}).items()}


def with_secrets(
    pods: Iterable[dict[str, Json]], found: Mapping[str, bytes], project: str, place: str
) -> tuple[list[dict[str, Json]], dict[str, bytes]]:
    """The pods with secrets in place of ``configs``.

    :param found: contents by name. :param project: of the file. :param place: the file's path, for errors.
    :returns: the pods, and the contents by the names of the secrets.
    :raises UsageError: an app names a content that the file does not have. :raises ManifestError: an app's value
        is malformed.
    """
    names = {
        name: f"{prefix(project)}{name}_{hashlib.sha256(content).hexdigest()[:16]}"
        for name, content in found.items()
    }
    made = []
    for number, pod in enumerate(pods):
        apps = []
        for index, app in enumerate(pod["apps"]):
            own = dict(app)
            given, path = own.pop(CONFIGS, None), f"$.pods[{number}].apps[{index}].{CONFIGS}"
            with naming(place):
                if given is not None and not (
                    isinstance(given, list) and all(isinstance(one, dict) for one in given)
                ):
                    raise ManifestError(path, "a list of objects", describe(given))
            for one in given or ():
                name = one.get("name")
                if not isinstance(name, str) or name not in names:
                    raise UsageError(f"{place}: {path}: there is no config {describe(name)}", hint=_HINT)
                if "target" not in one or "environment" in one:
                    raise UsageError(f"{place}: {path}: config {name} needs a target, and has no environment")
                own["secrets"] = [*(own.get("secrets") or ()), {**one, "name": names[name]}]
            apps.append(own)
        made.append({**pod, "apps": apps})
    return made, {names[name]: content for name, content in found.items()}


_HINT = f"add its content to {CONFIGS} of the file"


def prefix(project: str) -> str:
    """How the names of a project's secrets begin."""
    return f"compose_config_{hashlib.sha256(project.encode()).hexdigest()[:12]}_"


def store(client: Api, files: Mapping[str, bytes]) -> None:
    """Stores contents. :param files: by names that have a digest of them; one that is there is right."""
    stored = {one.name for one in client.secrets_list()} if files else set()
    for name, content in files.items():
        if name not in stored:
            client.secret_create(name, base64.b64encode(content).decode(), replace=True)


def forget(client: Api, prefixes: tuple[str, ...], keep: Collection[str] = ()) -> None:
    """Removes contents that no pod uses any more.

    :param prefixes: how their names begin. :param keep: names of those that stay.
    """
    for one in client.secrets_list() if prefixes else ():
        if one.name.startswith(prefixes) and not one.pods and one.name not in keep:
            with suppress(SecretNotFoundError):
                client.secret_rm(one.name)
