"""Writes images of the store to registries and files."""
