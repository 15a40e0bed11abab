"""The dashboard: a service of kurmad that shows pods on a web page, and a command that prints its address."""
