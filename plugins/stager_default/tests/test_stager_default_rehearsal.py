"""What a stager that waits goes through before it has a pod."""

import os
import resource

from kurma_stager_default.inside import manifest, rehearsal, rootmaker


def _writes(first) -> int:
    """Pages that a forked process writes to, or finds, as it reads a manifest after ``first``."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            first()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            manifest.parse(rehearsal._MANIFEST.encode(), "this")
            found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            os.write(writer, str(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as said:
        found = int(said.read())
    os.waitpid(pid, 0)
    return found


def test_a_manifest_is_read_without_writing_to_shared_memory():
    manifest.parse(rehearsal._MANIFEST.encode(), "this")
    unrehearsed = _writes(lambda: None)
    assert unrehearsed > 20
    assert _writes(rehearsal.of_root) < unrehearsed / 2
    assert _writes(rehearsal.of_pod) < unrehearsed / 2


def test_it_is_of_a_pod_as_most_are():
    pod = manifest.parse(rehearsal._MANIFEST.encode(), "this")
    assert rootmaker.wanted(pod) is pod.apps[0]
    assert pod.apps[0].mounts
