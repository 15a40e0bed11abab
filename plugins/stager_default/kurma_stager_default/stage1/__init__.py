"""The default stager as a stage1 (Z9): what stands between rkt's interface with these and the stager's inside.

``entry_*`` run on the host's root, in the pod's directory, each for one call; they import what they like of the
standard library. :mod:`.pod` is what is left running, in a root of its own.
"""
