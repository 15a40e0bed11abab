"""Texts that Kurma and its stagers' programs both read and write: JSON, logs, times, keys. Light to import."""
