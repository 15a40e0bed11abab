"""Changes pods that exist: stop, kill, remove, garbage collection, and apps added to a running pod."""
