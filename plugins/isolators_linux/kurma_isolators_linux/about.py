"""What each isolator of this package is, for people: ``kurma isolators list`` and ``docs/isolators.md``.

No run of a pod loads this. Whoever adds an isolator adds a line here, and runs
``python tests/docs/test_docs_isolators.py``, which writes the table.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Name → the form of its value in words, and an example.
ABOUT: dict[str, tuple[str, Any]] = {
    "os/linux/no-new-privileges": ("true or false", True),
}
