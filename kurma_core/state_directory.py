"""The state directory, before anything in it is believed: a key in it vouches for programs that run as root."""

from __future__ import annotations

import os
import stat

from kurma_core.errors import ConfigError
from kurma_core.linux.files import others_may_write

_BELOW = ("", "/keys", "/images", "/pods")


def check(path: str, origin: str) -> None:
    """Whether it is a directory, and only root and the caller write to it; one that is not there is made later.

    :param origin: where the configuration has it from.
    :raises ConfigError: it is not so.
    """
    for below in _BELOW:
        place = path + below
        try:
            status = os.stat(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            _fail(path, origin, f"{place}: {str(error.strerror).lower()}")
        if not stat.S_ISDIR(status.st_mode):
            _fail(path, origin, f"{place} is not a directory")
        if others_may_write(status):
            raise ConfigError(
                f"the state directory {path}: others than root may write {place} "
                f"(owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}), so nothing in it is trusted",
                hint=f"look who put what there, then: chown root {place} && chmod go-w {place}",
                file=origin,
                path="state_dir",
            )


def _fail(path: str, origin: str, what: str) -> None:
    raise ConfigError(
        f"the state directory {path} cannot be used: {what}",
        hint="--dir, KURMA_DIR or `state_dir` in kurma.yml name it",
        file=origin,
        path="state_dir",
    )
