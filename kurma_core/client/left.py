"""A pod that was made to be run at once, and did not come up: it is there, and whoever has asked is told of it."""

from __future__ import annotations

from kurma_core.errors import KurmaError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.client.local import LocalClient
    from kurma_core.client.remote import RemoteClient

#: The pod's UUID in the data of the error that tells why.
LEFT = "left"


def tell_left(client: LocalClient | RemoteClient, error: KurmaError, uuid: str) -> None:
    """Has the error tell of the pod, if that is there and has not run."""
    try:
        state = client.pod(uuid).state
    except KurmaError:
        return  # it has gone, or says itself what is wrong with it
    if state in ("prepared", "errored"):
        error.data[LEFT] = uuid


def hint(error: KurmaError) -> str | None:
    uuid = error.data.get(LEFT)
    return None if uuid is None else f"the pod is still there: kurma logs {uuid}, kurma rm {uuid}"


__all__ = ["LEFT", "hint", "tell_left"]
