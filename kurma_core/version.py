"""Kurma's version. Kept as a constant: asking the package's metadata costs tens of milliseconds."""

from __future__ import annotations

VERSION = "0.1.0"
