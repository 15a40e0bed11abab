"""The life of the kurmad process: run directory, readiness, log, threads, idle end."""
