"""What can go wrong while an app is set up."""

from __future__ import annotations


class SetupError(Exception):
    """An app, or the pod, cannot be set up; the text says what failed, on what, why."""
