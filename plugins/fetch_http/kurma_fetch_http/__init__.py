"""Fetches images from files, http and https for Kurma."""
