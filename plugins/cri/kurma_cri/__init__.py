"""Kurma's pods for Kubernetes: the Container Runtime Interface."""
