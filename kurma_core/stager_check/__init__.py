"""The contract suite that any stager's image can be run through: ``kurma stager check``.

It brings an app of its own (:mod:`probe`), which tells what it finds inside over a socket in the pod's network
namespace and does as it is told, and looks at it from outside at the same time. So what a stager gets wrong, logs
and volumes included, is seen by other means than those that are in doubt.
"""
