"""The token and the key on disk (M4)."""

import os
import stat

from kurma_core.pods.run import pod_metadata


def test_they_are_made_once_and_for_root_alone(tmp_path):
    place = str(tmp_path / "metadata")
    assert pod_metadata.load_secrets(place) is None
    assert pod_metadata.read_key(place) is None
    made = pod_metadata.keep_secrets(place)
    assert len(bytes.fromhex(made.token)) * 8 >= 128
    assert len(made.key) == 64
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    assert {name: stat.S_IMODE(os.stat(f"{place}/{name}").st_mode) for name in os.listdir(place)} == {
        "token": 0o600,
        "key": 0o600,
    }
    again = pod_metadata.keep_secrets(place)
    assert (again.token, again.key) == (made.token, made.key)
    assert pod_metadata.read_key(place) == made.key
    with open(pod_metadata.token_file(place)) as file:
        assert file.read() == made.token + "\n"


def test_no_two_are_alike(tmp_path):
    first, second = pod_metadata.keep_secrets(str(tmp_path / "a")), pod_metadata.keep_secrets(str(tmp_path / "b"))
    assert first.token != second.token
    assert first.key != second.key


def test_what_is_not_whole_is_made_anew(tmp_path):
    place = str(tmp_path / "metadata")
    made = pod_metadata.keep_secrets(place)
    with open(pod_metadata.token_file(place), "w") as file:
        file.write(made.token[:-2])
    assert pod_metadata.load_secrets(place) is None
    again = pod_metadata.keep_secrets(place)
    assert again.token != made.token
    assert again.key == made.key


def test_they_do_not_show_themselves(tmp_path):
    made = pod_metadata.keep_secrets(str(tmp_path / "metadata"))
    assert made.token not in repr(made)
    assert made.key.hex() not in repr(made)
    assert repr(made.key) not in repr(made)
