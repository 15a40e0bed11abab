"""The command line.

Each command is declared once, in light values (:mod:`.declare`, :mod:`.commands`). A small parser reads the
ordinary command line by them, and typer all others, help and completion.
"""
