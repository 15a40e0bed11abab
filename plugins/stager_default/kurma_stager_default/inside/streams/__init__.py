"""What apps write and read: logs, standard input, terminals, attached clients."""
