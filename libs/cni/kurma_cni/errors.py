"""The error that everything in this package raises."""

from __future__ import annotations


class CniError(Exception):
    """Something failed: which network, which plugin, why, in one line.

    :param hint: what to do about it, if that is known.
    :param plugin: type of the plugin that failed, if one did.
    :param code: the error code that the plugin answered with (CNI specification, section 2, "Error").
    :param words: the plugin's own message; empty: it gave none.
    :param missing: the plugin is not installed.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        plugin: str = "",
        code: int | None = None,
        words: str = "",
        missing: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.plugin = plugin
        self.code = code
        self.words = words
        self.missing = missing

    @property
    def reason(self) -> str:
        """Plugin and message of an error that the plugin answered as the specification says; empty: it did not."""
        return f"{self.plugin}: {self.words}" if self.words else ""
