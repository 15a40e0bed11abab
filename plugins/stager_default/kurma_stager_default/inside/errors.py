"""The error of a failed set-up of an app or a pod."""

from __future__ import annotations


class SetupError(Exception):
    """An app or the pod cannot be set up. The text names the step, the object and the reason."""
