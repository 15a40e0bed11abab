"""Values of the API about named volumes."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.models.isolator import MAX_ID
from kurma_core.schema import JsonValue, Timestamp, Whole
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    OwnerId = int
else:
    OwnerId = Whole(0, MAX_ID)


@frozen
class VolumeInfo(JsonValue):
    """A named volume.

    :param name: name of the volume.
    :param path: its directory on the host, with the files of the apps.
    :param created_at: when it was created.
    :param uid: owner of the directory now. :param gid: its group now. :param mode: its mode now, in octal digits.
    :param labels: by name.
    :param pods: names of the pods that use it, whether they run or not.
    """

    JSON_NAME = "Volume"

    name: str
    path: str
    created_at: Timestamp
    uid: OwnerId
    gid: OwnerId
    mode: str
    labels: Mapping[str, str]
    pods: tuple[str, ...] = ()
