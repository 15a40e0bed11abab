"""What is different about an image that came from Docker or OCI, as its annotations keep it (R3)."""

from __future__ import annotations

from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest

_PREFIX = "appc.io/docker/"
_STOP_SIGNAL = "kurma.io/docker/stopsignal"


def is_docker(image: ImageManifest) -> bool:
    """Whether the image was one. Such images expect, for instance, that a missing working directory is made."""
    return any(annotation.name.startswith(_PREFIX) for annotation in image.annotations)


def stop_signal(image: ImageManifest) -> int:
    """Number of the signal by which the image's app wants to be asked to end: its ``StopSignal``, else SIGTERM.

    A word that names no signal of this machine counts as none: it came with the image; nobody here can mend it.
    """
    import signal

    word = (image.annotation(_STOP_SIGNAL) or "").upper()
    if word.isascii() and word.isdigit() and 1 <= int(word) < signal.NSIG:
        return int(word)
    name, _, offset = (word if word.startswith("SIG") else f"SIG{word}").partition("+")
    if name == "SIGRTMIN" and offset.isascii() and offset.isdigit():
        return min(signal.SIGRTMIN + int(offset), signal.SIGRTMAX)
    return int(signal.Signals.__members__.get(name, signal.SIGTERM))


def docker_words(image: ImageManifest, which: str) -> tuple[str, ...] | None:
    """Entrypoint or Cmd as a Docker image's annotation keeps it (R3): a JSON list; None: it has none."""
    text = image.annotation(f"appc.io/docker/{which}")
    if text is None:
        return None
    from kurma_core.json_text import loads

    try:
        words = loads(text)
    except ValueError:
        import shlex

        return tuple(shlex.split(text))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"image {image.name}: annotation appc.io/docker/{which} is no list of words: {text}")
    return tuple(words)
