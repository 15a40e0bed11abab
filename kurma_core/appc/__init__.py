"""The App Container specification's vocabulary: types, quantities, manifests. Pure: nothing here does I/O.

Import the modules, each by its name; this package imports none of them.
"""
