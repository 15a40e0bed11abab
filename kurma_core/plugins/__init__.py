"""Finds, loads, checks and lists plugins."""
