"""The Container Runtime Interface, generated from ``runtime.proto`` by ``./dev stubs``."""
