"""The metadata service: answers apps' HTTP requests about their own pod (App Container Metadata Service).

A pod's start imports :mod:`.listening`, :mod:`.secrets` and :mod:`.service`; the first request imports the
rest. The package does not know pods: its callers pass :class:`.facts.Facts`.
"""
