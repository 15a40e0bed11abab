"""Plugins: found and remembered, loaded, held against their contracts, listed."""
