"""The metadata service: what the apps of a pod may ask about themselves, by HTTP (App Container Metadata Service).

A pod's start imports :mod:`.listening`, :mod:`.secrets` and :mod:`.service`; the first request imports the
rest. The package does not know pods: its callers pass :class:`.facts.Facts`.
"""
