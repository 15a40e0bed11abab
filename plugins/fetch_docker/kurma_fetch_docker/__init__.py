"""Fetches Docker and OCI images for Kurma."""
