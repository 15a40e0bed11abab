"""Frozen values that packages and plugins pass to each other, a module for each noun.

Manifests are in :mod:`kurma_core.appc`, the contracts of drivers in :mod:`kurma_core.hookspecs`. ``to_json`` gives
the form that ``--format json`` prints and that is stored on disk: keys are only ever added.
"""

#: States of a live pod, which ``kurma ps`` lists. They are here since this imports nothing: completion needs them.
LIVE_STATES = ("preparing", "starting", "running", "stopping")
