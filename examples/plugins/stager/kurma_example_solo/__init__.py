"""A stager that is a process of the host: one app, chrooted into a copy of its layers."""
