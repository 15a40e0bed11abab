"""Networks of pods: which a pod joins and under what interface names, joining and leaving them, in order (W1–W8).

A driver (:class:`kurma_core.hookspecs.network.Network`) does what its kind of network needs; here are the names,
the order of things, the undo, and what holds for networks of every kind.
"""
