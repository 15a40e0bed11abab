"""Pods: prepares, launches, owns, changes, enters and takes them down."""
