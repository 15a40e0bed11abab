"""Networks of pods: plans which networks a pod joins, names its interfaces, joins and leaves the networks in
order.

A driver (:class:`kurma_core.hookspecs.network.Network`) implements one kind of network. This package has the code
for all kinds: names, order, and the undo after a failure.
"""
