"""The command line.

Each command is declared once, in light values (:mod:`.command_line`, :mod:`.commands`). A small parser reads the
ordinary command line by them, completion (:mod:`.completion`) an unfinished one, and typer all others.
"""
