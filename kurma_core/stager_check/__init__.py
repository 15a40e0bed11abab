"""Checks any stager's image against the contract of stagers: ``kurma stager check``.

It runs an app of its own (:mod:`probe`), which reports its surroundings over a socket in the pod's network
namespace and carries out commands, while the check inspects it from outside. So the check does not rely on the
stager's own logs, volumes and call-ins to find their errors.
"""
