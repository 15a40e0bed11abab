"""The commands, a file for each group. :mod:`kurma_core.cli.command_table` names them."""
