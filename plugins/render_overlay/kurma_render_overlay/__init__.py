"""Renders images as layers for overlay file systems for Kurma."""
