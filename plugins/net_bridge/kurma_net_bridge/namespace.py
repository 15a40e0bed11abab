"""Runs functions inside a pod's network namespace, and turns netlink errors into network errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from kurma_core.errors import NetworkError
from kurma_core.hookspecs.network import AttachmentContext
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.linux.netlink import NetlinkError

T = TypeVar("T")


def open_namespace(context: AttachmentContext) -> int:
    """Opens the pod's network namespace. :returns: a descriptor. :raises NetworkError: it does not exist."""
    try:
        return os.open(context.namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _missing(context, error) from error


def inside(context: AttachmentContext, function: Callable[[], T]) -> T:
    """Calls ``function`` inside the namespace. :raises NetworkError: the namespace cannot be entered."""
    try:
        return in_network_namespace(context.namespace, function)
    except NetlinkError:
        raise
    except OSError as error:
        raise _missing(context, error) from error


def refused(network: str, error: NetlinkError) -> NetworkError:
    """The kernel's refusal as a network error."""
    return NetworkError(f'network "{network}": {error.strerror}', network=network, errno=error.errno)


def _missing(context: AttachmentContext, error: OSError) -> NetworkError:
    return NetworkError(
        f'network "{context.attachment.network}": cannot enter the network namespace of pod {context.pod}: '
        f"{error.strerror}: {context.namespace}",
        network=context.attachment.network,
        path=context.namespace,
        errno=error.errno,
    )
