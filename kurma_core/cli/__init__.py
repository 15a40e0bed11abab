"""The command line. What a command is called and takes is declared once, in light values (:mod:`.declare`,
:mod:`.table`); two readers work from that: a small one for the ordinary case, and typer for help, completion and
whatever the small one does not understand.
"""
