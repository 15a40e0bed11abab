"""Locators that are paths mean what they do where they are written, whoever follows them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kurma_core.api.pods import PodRequest

_SCHEME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789+-")


def absolute(text: str, schemes: Callable[[], Collection[str]]) -> str:
    """The same locator, for a process with another working directory; see :func:`parse_locator`.

    :param schemes: the fetchers that there are; asked only where it matters.
    """
    if text in (".", "..") or text.startswith(("./", "../")) or (text.endswith(".aci") and os.path.exists(text)):
        return os.path.abspath(text)
    scheme, colon, rest = text.partition(":")
    lower = scheme.lower()
    if not (colon and lower and _SCHEME.issuperset(lower)) or not rest or rest.startswith("/"):
        return text
    if rest.startswith(("./", "../")) or lower in schemes():
        return f"{lower}:{os.path.abspath(rest)}"
    return text


def absolute_request(request: PodRequest, absolute: Callable[[str], str]) -> PodRequest:
    """The request, with the locators of its images so that they mean the same elsewhere."""
    from kurma_core.value import replace

    apps = []
    for app in request.template.pod.apps:
        locator = app.image.locator
        if locator is not None:
            app = replace(app, image=replace(app.image, locator=absolute(locator)))
        apps.append(app)
    template = request.template
    return replace(request, template=replace(template, pod=replace(template.pod, apps=tuple(apps))))


__all__ = ["absolute", "absolute_request"]
