"""Networks whose plugin is an image (Kurma Network Specification)."""
