"""The life of the kurmad process: lock and socket, readiness, log, threads, idle end."""
