"""The App Container specification's vocabulary: types, quantities, manifests. The modules do no I/O.

Import the modules, each by its name; this package imports none of them.
"""
