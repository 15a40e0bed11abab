"""Renders images as one flat copied tree for Kurma."""
