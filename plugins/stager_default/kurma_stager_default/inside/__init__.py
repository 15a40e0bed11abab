"""The modules that run inside the stager's image. They use small parts of the standard library, and the core's
light packages.

Do not import ``json``, ``re``, ``enum``, ``typing``, ``dataclasses``, ``subprocess`` or ``signal`` here: each
costs memory in every idle pod's supervisor, and time at every start of a pod.
"""
