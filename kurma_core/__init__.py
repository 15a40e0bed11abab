"""Kurma's version. Kept as a constant: asking the package's metadata costs tens of milliseconds."""

VERSION = "0.1.0"
