"""Untrusted directory trees: merges, copies and mounts them, and finds users in them. Quick to import."""
