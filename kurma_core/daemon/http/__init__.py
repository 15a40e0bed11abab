"""The HTTP side of kurmad: connections, requests, streams."""
