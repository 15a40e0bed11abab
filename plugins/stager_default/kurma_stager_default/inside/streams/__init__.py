"""Input and output of apps: logs, standard input, terminals, attached clients."""
