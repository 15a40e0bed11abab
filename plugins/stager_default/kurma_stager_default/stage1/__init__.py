"""The default stager as rkt's stage1: implements rkt's stage1 interface with the modules of the stager's inside.

The modules ``entry_*`` are the entrypoints: they run on the host's root, in the pod's directory, each for one
call, and may import any standard module. :mod:`.pod` is the long-running supervisor, in a root of its own.
"""
