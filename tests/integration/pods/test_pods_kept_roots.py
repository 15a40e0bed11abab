"""Pods that keep their apps' roots (``--keep-root``): what ``cp``, ``diff`` and ``commit`` find after the end."""

import os
import stat

import pytest

from kurma_core.errors import KurmaError, PodStateError, UsageError
from kurma_core.models.pod import KEEP_ROOT
from kurma_core.secret_store import SecretStore
from tests.kit.images import shell

pytestmark = pytest.mark.root

KEPT = {"annotations": [{"name": KEEP_ROOT, "value": "true"}]}
WRITES = (
    "mkdir -p /srv/new; echo made >/srv/new/file; chown 1000:100 /srv/new/file; echo more >>/etc/passwd;"
    "rm -f /etc/group; ln -s /etc/shadow /srv/out; ln -s / /srv/up"
)


def ended(house, script=WRITES, *, users=None, options=KEPT):
    """A pod that has ended, whose app has run a script."""
    record, output = house.run({"main": shell(script)}, userns=users, **options)
    assert (record.exit_code, output) == (0, "")
    return record


@pytest.mark.parametrize("users", [None, "auto"])
def test_a_kept_root_is_read(house, tmp_path, users):
    """Its files have the owners that the app saw, and links in it do not lead out."""
    pod = ended(house, users=users)
    client = house.client
    client.copy_out(pod.uuid, None, "/srv", str(tmp_path / "srv"), whole=True)
    file = tmp_path / "srv/new/file"
    status = os.stat(file)
    assert (file.read_text(), status.st_uid, status.st_gid) == ("made\n", 1000, 100)
    client.copy_out(pod.uuid, "main", "/srv/up/etc/passwd", str(tmp_path / "passwd"), whole=True)
    assert (tmp_path / "passwd").read_text().endswith("more\n")
    assert os.stat(tmp_path / "passwd").st_uid == 0
    kinds = {one.path: one.kind for one in client.root_changes(pod.uuid, None)}
    assert kinds["/srv/new/file"] == "added"
    assert kinds["/etc/passwd"] == "changed"
    assert kinds["/etc/group"] == "deleted"
    assert not {"/etc/hosts", "/etc/resolv.conf", "/proc", "/dev"} & kinds.keys()
    with pytest.raises(PodStateError, match="is stopped"):
        client.copy_in(pod.uuid, "main", str(tmp_path / "passwd"), "/srv/x")


def test_places_of_secrets_are_no_changes(house):
    store = SecretStore(house.state)
    store.write("pass", b"hunter2")
    app = {"app": shell("touch /made"), "secrets": [{"name": "pass"}, {"name": "pass", "target": "/etc/key"}]}
    try:
        record, _ = house.run({"main": app}, **KEPT)
    finally:
        store.remove("pass")
    assert [one.path for one in house.client.root_changes(record.uuid, None)] == ["/made"]


@pytest.mark.parametrize("users", [None, "auto"])
def test_an_image_is_made_of_it(house, users):
    """It has all files, with the app's owners, and runs."""
    pod = ended(house, users=users)

    def named(manifest):
        return {**manifest, "name": "example.com/committed"}

    image = house.client.commit(pod.uuid, None, named)
    assert image.name == "example.com/committed"
    _, output = house.run({"main": {"image": {"id": image.id}, "app": shell(_LOOKS)}})
    assert output == "made\n1000 100\nno group\n"


_LOOKS = "cat /srv/new/file; stat -c '%u %g' /srv/new/file; [ -e /etc/group ] || echo no group"


def test_it_goes_with_the_next_start_and_with_the_pod(house, tmp_path):
    pod = ended(house, "[ ! -e /again ] && touch /again")
    directory = house.path(pod.uuid)
    assert os.path.isdir(f"{directory}/pod/apps/main")
    assert house.start(pod.uuid)[0].exit_code == 0  # from a clean copy
    assert [one.path for one in house.client.root_changes(pod.uuid, None)] == ["/again"]
    house.client.rm(pod.uuid)
    assert not os.path.exists(directory)


def test_it_outlives_a_start_that_fails(house, tmp_path):
    """The start needs a secret that is gone, or a host path that is gone."""
    store = SecretStore(house.state)
    store.write("pass", b"hunter2")
    source = tmp_path / "source"
    source.mkdir()
    volume = {"name": "vol", "kind": "host", "source": str(source)}
    main = {
        "app": shell("[ ! -e /made ] && touch /made && echo more >>/made"),
        "secrets": [{"name": "pass"}],
        "mounts": [{"volume": "vol", "path": "/vol"}],
    }
    pod, _ = house.run({"main": main}, volumes=[volume], **KEPT)
    client = house.client
    store.remove("pass")
    for _ in range(2):
        with pytest.raises(KurmaError, match="secret"):
            house.start(pod.uuid)
    store.write("pass", b"hunter2")
    source.rmdir()
    with pytest.raises(KurmaError, match="source"):
        house.start(pod.uuid)
    assert client.pod(pod.uuid).state == "errored"
    assert [one.path for one in client.root_changes(pod.uuid, None)] == ["/made"]
    client.copy_out(pod.uuid, None, "/made", str(tmp_path / "made"), whole=True)
    assert (tmp_path / "made").read_text() == "more\n"
    source.mkdir()
    assert house.start(pod.uuid)[0].exit_code == 0  # from a clean copy


def test_a_pod_that_keeps_none_says_so(house, tmp_path):
    pod = ended(house, options={})
    for read in (
        lambda: house.client.copy_out(pod.uuid, None, "/srv", str(tmp_path / "srv")),
        lambda: house.client.root_changes(pod.uuid, None),
        lambda: house.client.commit(pod.uuid, None, dict),
    ):
        with pytest.raises(PodStateError) as raised:
            read()
        assert "--keep-root" in raised.value.hint
    assert stat.S_ISDIR(os.stat(house.path(pod.uuid)).st_mode)


def test_wrong_values_are_refused(house):
    request = house.request({"main": shell("true")}, annotations=[{"name": KEEP_ROOT, "value": "yes"}])
    with pytest.raises(UsageError, match="'yes'"):
        house.client.prepare(request)
    with pytest.raises(UsageError, match="--rm"):
        house.client.prepare(house.request({"main": shell("true")}, ephemeral=True, **KEPT))
    assert house.client.pods() == []
