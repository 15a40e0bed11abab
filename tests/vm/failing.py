"""Why the machine did not do what it was made for."""


class Failing(Exception):
    """:param tail: the last that its console told, for people to read."""

    def __init__(self, message, tail=""):
        super().__init__(message)
        self.tail = tail
