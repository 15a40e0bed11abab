"""The metadata service: what the apps of a pod may ask about themselves, by HTTP (App Container Metadata Service).

What a pod's start pays for is in :mod:`.listening`, :mod:`.secrets` and :mod:`.service`; all the rest is imported
when the first request comes. The room knows no pods: what is told, and for whom, is handed to it as
:class:`.facts.Facts`.
"""
