"""Checks that only root may write to the state directory: keys in it are trusted for programs that run as root."""

from __future__ import annotations

import os
import stat

from kurma_core.errors import ConfigError
from kurma_core.linux.files import others_may_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.config import Config

_NAMED = "--dir, KURMA_DIR or `state_dir` in kurma.yml name"
_BELOW = ("", "/keys", "/images", "/pods")


def check(path: str, origin: str) -> None:
    """Checks that it is a directory to which only root and the caller may write. It may not exist yet.

    :param origin: the origin of the setting.
    :raises ConfigError: it is not a directory, or other users may write to it.
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


def run_dir_hint(config: Config) -> str:
    """Names the setting that determines the run directory."""
    same = config.origins.get("run_dir") == config.origins.get("state_dir")
    if same and config.run_dir == f"{config.state_dir}/run":
        return f"it is in the state directory, which {_NAMED}"
    return "`run_dir` in kurma.yml names it"


def _fail(path: str, origin: str, what: str) -> None:
    raise ConfigError(
        f"the state directory {path} cannot be used: {what}",
        hint=f"{_NAMED} it",
        file=origin,
        path="state_dir",
    )
