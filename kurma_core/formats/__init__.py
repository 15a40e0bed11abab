"""Text formats that Kurma and its stagers' programs read and write: JSON, logs, times, keys. Quick to import."""
