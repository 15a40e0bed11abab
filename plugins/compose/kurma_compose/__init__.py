"""Commands for the pods of a file: ``kurma up`` and ``kurma down``."""
