"""The state directory, before anything in it is believed: a key in it vouches for programs that run as root."""

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


def run_dir_hint(config: Config) -> str:
    """Where it is said which run directory is used."""
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
