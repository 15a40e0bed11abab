"""Runs chains of CNI plugins: configurations, execution, ADD and DEL of a chain, and the plugins' iptables rules.

Standard library only. Kurma's network plugin ``cni`` uses it, and the default stager ships it in its stage1 image.
What it needs of its host, such as running a program, is an argument: :class:`kurma_cni.plugins.Programs`.
"""
