"""Linux isolators for Kurma pods."""
