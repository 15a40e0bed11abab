"""kurmad: one process that serves a state directory to many callers, and owns the pods made through it.

It uses a client of its own process, as a foreground command does, and keeps running. Each connection has a thread,
which does the connection's operations. No thread polls.
"""
