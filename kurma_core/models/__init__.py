"""Values that packages and plugins hand to each other, a module for each noun. Frozen.

What a manifest says is in :mod:`kurma_core.appc`; the contracts of drivers are in :mod:`kurma_core.hookspecs`.
Every ``to_json`` here is what ``--format json`` prints and what stands on disk: keys are only ever added.
"""
