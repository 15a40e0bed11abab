"""What a layer on its way into the store costs, and what it does where the disk fails (S1)."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import subprocess
import sys

import pytest

from kurma_core.errors import StoreError
from kurma_core.image_store import ImageStore, staging
from tests.kit.archives import file, tar

#: Size of the layer, and the most that its extraction may add to a process; both in MiB.
LAYER, MOST = 200, 40

PROGRAM = """
import sys
from kurma_core.image_store import ImageStore, staging

def peak():  # of this program alone; getrusage counts what it was forked from, too
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))

before = peak()
with open(sys.argv[2], "rb") as stream:
    ImageStore(sys.argv[1]).add_layer(stream, sys.argv[3])
print(peak() - before)
"""


@pytest.mark.root
@pytest.mark.full
def test_memory_does_not_grow_with_the_layer(tmp_path: object) -> None:
    content = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1 << 15))
    layer = tar([file("data/large", content * LAYER)])
    with open(f"{tmp_path}/layer.gz", "wb") as out:
        out.write(gzip.compress(layer, 0))
    words = [f"{tmp_path}/images", f"{tmp_path}/layer.gz", f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    assert int(done.stdout) < MOST


def test_an_error_of_the_disk_that_the_kernel_tells_early_is_not_lost(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once: the sync before the layer is put in place would be told nothing."""

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = ImageStore(f"{tmp_path}/images")
    archive = tar([file("etc/motd", uid=os.getuid(), gid=os.getgid())])
    diff_id = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    monkeypatch.setattr(staging, "sync_file_system", broken)
    with pytest.raises(StoreError, match="input/output error"):
        store.add_layer(io.BytesIO(archive), diff_id)
    assert os.listdir(store.path("layers")) == os.listdir(store.path("tmp")) == []
