"""Pods: how one is prepared, launched, looked after, called into and taken down."""
