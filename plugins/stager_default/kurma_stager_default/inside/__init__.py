"""The half that runs inside the stager's image, on the standard library's smallest parts and ``kurma_core.linux``.

No ``json``, ``re``, ``enum``, ``typing``, ``dataclasses``, ``subprocess``, ``signal`` here: each costs
every idle pod's supervisor memory, and every start of a pod time.
"""
