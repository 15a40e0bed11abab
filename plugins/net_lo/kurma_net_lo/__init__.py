"""The loopback network for Kurma pods."""
