"""A1: encrypted archives on their way into the store, opened by real gpg."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard

from kurma_core.errors import ArchiveError, DecryptionError, HostileArchiveError
from kurma_core.image_store import ImageStore, Limits
from kurma_core.images.acquisition import decrypting, refusing_encrypted
from kurma_core.value import replace
from tests.kit.archives import LOCAL, directory, file, image, nothing_left_behind, validate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.image_store.archive_stream import Decrypt

SECRET = b"open sesame"
PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "none": lambda data: data,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.compress,
}
TAR = image(directory("rootfs/d", mode=0o1777), file("rootfs/d/f", os.urandom(200_000)))


class Given:
    attempts = 1

    def __init__(self, passphrase: bytes) -> None:
        self._passphrase = passphrase

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        assert what == "image.aci"
        return self._passphrase


def encrypted(data: bytes, *options: str) -> bytes:
    """By plain gpg."""
    command = [
        "gpg",
        "--batch",
        "--quiet",
        "--no-autostart",
        "--pinentry-mode",
        "loopback",
        "--s2k-count",
        "65536",
    ]
    read, write = os.pipe()
    command += ["--passphrase-fd", str(read), "--cipher-algo", "AES256", *options, "--symmetric"]
    os.write(write, SECRET + b"\n")
    os.close(write)
    try:
        return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True, pass_fds=(read,)).stdout
    finally:
        os.close(read)


@pytest.fixture(autouse=True)
def gnupg_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpg").mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(tmp_path / "gpg"))


@pytest.fixture
def outside(tmp_path: Path) -> str:
    (tmp_path / "outside").mkdir()
    return str(tmp_path / "outside")


def decrypt(passphrase: bytes = SECRET) -> Decrypt:
    return decrypting(lambda: Given(passphrase))("image.aci")


@pytest.mark.parametrize("armor", [(), ("--armor",)], ids=["binary", "armored"])
@pytest.mark.parametrize("packer", PACKERS)
def test_stored_as_the_archive_in_it(packer: str, armor: tuple[str, ...], store: ImageStore) -> None:
    """The ID is that of the tar; what is kept needs no passphrase any more, and a signature is over what came."""
    inner = PACKERS[packer](TAR)
    shipped = encrypted(inner, *armor)
    with store.stage_archive(io.BytesIO(shipped), decrypt()) as staged:
        assert staged.encrypted
        assert Path(staged.archive_path).read_bytes() == shipped
        assert b"".join(staged.tar()) == TAR
        stored = staged.commit(replace(LOCAL, encrypted=True))
    with store.stage_archive(io.BytesIO(TAR)) as plain:
        assert not plain.encrypted
        assert plain.id == stored.id
    kept = store.archive_path(stored.id)
    assert kept is not None
    assert Path(kept).read_bytes() == inner
    assert os.listdir(store.path("tmp")) == []
    assert store.get(stored.id).provenance[0].encrypted
    store.verify(stored.id, deep=True)
    out = io.BytesIO()
    store.export(stored.id, out)
    assert out.getvalue() == TAR
    assert validate(io.BytesIO(shipped), Limits(), decrypt()) == store.manifest(stored.id)


def test_signed_bytes_that_are_kept_stay(store: ImageStore) -> None:
    """An archive whose bytes were signed is not replaced by what came encrypted, whoever signed that."""
    signed = gzip.compress(TAR)
    with store.stage_archive(io.BytesIO(signed)) as staged:
        stored = staged.commit(replace(LOCAL, trust="signed"))
    with store.stage_archive(io.BytesIO(encrypted(TAR)), decrypt()) as staged:
        staged.commit(replace(LOCAL, trust="signed", encrypted=True))
    kept = store.archive_path(stored.id)
    assert kept is not None
    assert Path(kept).read_bytes() == signed
    assert [came.encrypted for came in store.get(stored.id).provenance] == [False, True]


def refused(store: ImageStore, outside: str, shipped: bytes, opener: Decrypt | None, words: str) -> ArchiveError:
    with nothing_left_behind(store, outside), pytest.raises(ArchiveError, match=words) as caught:
        with store.stage_archive(io.BytesIO(shipped), opener) as staged:
            staged.commit(LOCAL)
    return caught.value


def test_modified_ciphertext_leaves_nothing(store: ImageStore, outside: str) -> None:
    """Also where everything can be extracted, and only the seal at the end tells: the bit lies in a file."""
    shipped = bytearray(encrypted(TAR, "--compress-algo", "none"))
    shipped[len(shipped) // 2] ^= 1
    error = refused(store, outside, bytes(shipped), decrypt(), "was changed or cut short")
    assert error.data["reason"] == "damaged"
    shipped = bytearray(encrypted(gzip.compress(TAR)))
    shipped[len(shipped) // 2] ^= 1
    refused(store, outside, bytes(shipped), decrypt(), "corrupt|was changed")


def test_without_the_right_passphrase_nothing_is_left(store: ImageStore, outside: str) -> None:
    shipped = encrypted(TAR)
    refused(store, outside, shipped, decrypt(b"wrong"), "passphrase is wrong")
    nobody = decrypting(None)("image.aci")
    refused(store, outside, shipped, nobody, "there is no passphrase")
    refused(store, outside, shipped, None, "which only an image's archive may be")


def test_not_with_host_privilege(store: ImageStore, outside: str) -> None:
    error = refused(store, outside, encrypted(TAR), refusing_encrypted("image.aci"), "host privilege must not be")
    assert isinstance(error, DecryptionError)


def test_encrypted_twice(store: ImageStore, outside: str) -> None:
    refused(store, outside, encrypted(encrypted(TAR)), decrypt(), "encrypted once more")
    refused(store, outside, encrypted(b"no archive" * 100), decrypt(), "neither a tar")
    refused(store, outside, encrypted(b""), decrypt(), "it is empty")


ZEROS = bytes(8 << 20)
#: What is in the message, gpg's own compression of it, and the limit that it breaks.
BOMBS = {
    "a tar that gpg packed": (image(file("rootfs/zeros", ZEROS)), "bzip2", "total_size"),
    "padding that gpg packed": (gzip.compress(TAR) + ZEROS, "bzip2", "total_size"),
    "packed in it": (gzip.compress(image(file("rootfs/zeros", ZEROS))), "none", "ratio"),
    "packed by gpg": (image(file("rootfs/zeros", ZEROS)), "bzip2", "ratio"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(bomb: str, tmp_path: Path, outside: str) -> None:
    content, packed, limit = BOMBS[bomb]
    limits = Limits(total_size=4 << 20) if limit == "total_size" else Limits(ratio=20, ratio_from=1 << 20)
    store = ImageStore(f"{tmp_path}/images", limits=limits)
    error = refused(store, outside, encrypted(content, "--compress-algo", packed), decrypt(), "archive")
    assert isinstance(error, HostileArchiveError)
    assert error.data["limit"] == limit


def test_the_disk_holds_no_more_than_the_limit(tmp_path: Path, outside: str) -> None:
    """A bomb is stopped while it goes off: what was written of it by then is small."""
    shipped = encrypted(gzip.compress(TAR) + bytes(64 << 20), "--compress-algo", "zlib")
    written = 0
    store = ImageStore(f"{tmp_path}/images", limits=Limits(total_size=8 << 20))

    def measured(head: bytes):  # type: ignore[no-untyped-def]
        plain = decrypt()(head)

        def pieces(source):  # type: ignore[no-untyped-def]
            nonlocal written
            for piece in plain(source):
                written += len(piece)
                yield piece

        return pieces

    refused(store, outside, shipped, measured, "decrypts to more than")
    assert written < 10 << 20


def test_a_layer_is_never_encrypted(store: ImageStore) -> None:
    with pytest.raises(ArchiveError, match="which only an image's archive may be"):
        store.add_layer(io.BytesIO(encrypted(TAR)), "sha256:" + "0" * 64)
