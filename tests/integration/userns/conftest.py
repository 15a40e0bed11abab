"""Pods with user namespaces, by the fixtures of the tests of pods."""

from tests.integration.cli.conftest import commands, kurma, kurma_command
from tests.integration.pods.conftest import (
    busybox_id,
    busybox_image,
    foreign,
    house,
    make_house,
    served,
    session_state,
    way,
)

__all__ = [
    "busybox_id",
    "busybox_image",
    "commands",
    "foreign",
    "house",
    "kurma",
    "kurma_command",
    "make_house",
    "served",
    "session_state",
    "way",
]
