"""Bridge networks for Kurma pods."""
