"""CNI networks for Kurma pods."""
