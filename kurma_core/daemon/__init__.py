"""kurmad: one process that serves a state directory to many callers, and owns the pods made through it.

It works by a client of its own process, as a foreground command does, and stays. Each connection has a thread, and
each thread its operation. No thread polls.
"""
