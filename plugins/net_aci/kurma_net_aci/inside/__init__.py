"""The small program that runs one script of a network's image: in a process of its own, with nothing of Kurma's
but ``kurma_core.linux``.
"""
