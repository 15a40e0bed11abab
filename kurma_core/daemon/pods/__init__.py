"""The pods that kurmad owns, recovers, restarts, prestarts and makes by its configuration."""
