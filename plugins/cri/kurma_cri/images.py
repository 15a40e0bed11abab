"""The image of a container: from its reference in the Container Runtime Interface to an image in Kurma's store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.linux.process import signal_number
from kurma_core.value import frozen
from kurma_cri.proto import runtime_pb2 as cri

if TYPE_CHECKING:
    from kurma_core.api.operations import Api


#: The annotation of a converted image with its stop signal.
STOP_SIGNAL = "kurma.io/docker/stopsignal"


@frozen
class RunImage:
    """An image that a container runs.

    :param id: its ID in the Container Runtime Interface. :param reference: name and digest, else the ID.
    :param locator: the image in Kurma's store. :param stop_signal: the image's, by its name in the enum.
    """

    id: str
    reference: str
    locator: str
    stop_signal: str = "SIGNAL_SIGTERM"


def run_image(client: Api, reference: str) -> RunImage:
    """:param reference: an ID, a name with tag or digest.

    :raises ImageNotFoundError: the store has no such image.
    """
    page = client.image(reference)
    stop_signal = enum_name(page.manifest.annotation(STOP_SIGNAL) or "")
    return RunImage(page.record.id, page.record.id, page.record.id, stop_signal)


def enum_name(text: str) -> str:
    """The name in the enum Signal of a signal's name or number; that of SIGTERM if there is none."""
    number = signal_number(text)
    found = [name for name in cri.Signal.keys() if signal_number(signal_name(name)) == number]  # noqa: SIM118
    return found[0] if found and number else "SIGNAL_SIGTERM"


def signal_name(name: str) -> str:
    """``SIGRTMIN+3`` for the enum's ``SIGNAL_SIGRTMINPLUS3``."""
    return name.removeprefix("SIGNAL_").replace("PLUS", "+").replace("MINUS", "-")
