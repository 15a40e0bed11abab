"""kurmad: one process that serves a state directory to many callers, and owns the pods made through it.

It works by way of :class:`kurma_core.client.local.LocalClient`, as a foreground command does: what it adds is that
it is there. Each connection has a thread, and each thread its operation; nothing polls.
"""
