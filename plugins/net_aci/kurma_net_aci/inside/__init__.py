"""The small program that runs one script of a network's image, in a process of its own; of Kurma it imports only
``kurma_core.linux``.
"""
