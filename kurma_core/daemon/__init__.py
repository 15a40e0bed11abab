"""kurmad: one process that serves a state directory to many callers, and owns the pods made through it.

It works by a client of this process, as a foreground command does: what it adds is that it stays. Each connection
has a thread, and each thread its operation; nothing polls.
"""
