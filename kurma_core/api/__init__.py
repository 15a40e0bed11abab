"""Values that cross kurmad's socket and that plugins do not see, by noun. It imports nothing."""
