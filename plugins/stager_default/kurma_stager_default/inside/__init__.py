"""What runs inside the stager's image, on the standard library's smallest parts and the core's light packages.

No ``json``, ``re``, ``enum``, ``typing``, ``dataclasses``, ``subprocess``, ``signal`` here: each costs
every idle pod's supervisor memory, and every start of a pod time.
"""
