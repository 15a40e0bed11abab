"""Images that a program manages, and credentials of one fetch (C4, C19, C20)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kurma_core.errors import FetchUnauthorizedError, ImageError, UsageError
from kurma_core.models.image import FetchCredentials
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.kit.command import KURMA
from tests.kit.registry import OciDir, Registry, layer_tar, running_registry

pytestmark = pytest.mark.root

CREDENTIALS = FetchCredentials("user", "hunter22")


@pytest.fixture
def here(machine: MakeMachine, tmp_path: Path) -> Machine:
    options = {"docker_config": str(tmp_path / "none")}
    return machine(plugins={"fetchers": {"docker": {"config": options}}})


@pytest.fixture
def locator(registry: Registry, oci: OciDir) -> str:
    oci.image("v1", [layer_tar({"file": b"content"})], {"Cmd": ["/file"]})
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    return f"docker://{registry.host}/team/app:v1"


def test_a_managed_image_stays_until_its_managers_give_it_up(here: Machine, locator: str) -> None:
    images = here.images
    record = images.fetch(locator, manager="conductor")
    assert record.managers == ("conductor",)
    assert images.fetch(locator, pull="always", manager="conductor").managers == ("conductor",)
    assert images.fetch(locator, manager="other").managers == ("conductor", "other")
    assert images.fetch(locator).managers == ("conductor", "other")
    for replaced in (False, True):
        assert not images.gc((), 0.0, replaced=replaced).removed
    with pytest.raises(ImageError, match=r"conductor manages it$") as caught:
        images.remove(locator)
    assert caught.value.hint is not None
    assert "--force" in caught.value.hint
    assert images.release(locator, "conductor", (), ()).removed == ()
    assert images.get(locator).managers == ("other",)
    assert [one.kind for one in images.release(locator, "other", (), ()).removed] == ["image", "layer"]
    assert images.list() == ()


def test_an_image_that_pods_use_is_given_up_and_not_removed(here: Machine, locator: str) -> None:
    """The pods of its manager keep it; those of others refuse that it is given up."""
    images = here.images
    record = images.fetch(locator, manager="conductor")
    used = {record.id}
    with pytest.raises(ImageError, match="a pod that conductor does not manage uses it"):
        images.release(locator, "conductor", used, used)
    assert images.release(locator, "conductor", (), used).removed == ()
    given_up = images.get(record.id)
    assert (given_up.managers, given_up.released) == ((), True)
    assert not images.gc(used, 0.0).removed
    # Fetched by a person, it is like any other; given up again, it goes with its last pod.
    assert not images.fetch(locator).released
    images.fetch(locator, manager="conductor")
    images.release(locator, "conductor", (), used)
    assert {one.kind for one in images.gc((), 0.0).removed} == {"image", "layer"}


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 513])
def test_a_managers_name_is_one_line(here: Machine, locator: str, name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a manager"):
        here.images.fetch(locator, manager=name)


def test_credentials_of_one_fetch(here: Machine, tmp_path: Path, oci: OciDir) -> None:
    """They are neither kept nor lent: the registry decides on each caller's own."""
    subprocess.run(
        ["htpasswd", "-Bbc", str(tmp_path / "users"), "user", "hunter22"], check=True, capture_output=True
    )
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "users")}}
    oci.image("v1", [layer_tar({"file": b"content"})], {"Cmd": ["/file"]})
    with running_registry(tmp_path / "closed", auth=auth) as registry:
        registry.push(f"oci:{oci.path}:v1", "team/app:v1", "--dest-creds=user:hunter22")
        locator, images = f"docker://{registry.host}/team/app:v1", here.images
        for credentials, why in (
            (FetchCredentials("user", "wrong"), "does not accept the credentials from the request"),
            (FetchCredentials("user", "hunter22", server="https://other.example/v1/"), "kurma has none"),
            (None, "kurma has none"),
        ):
            with pytest.raises(FetchUnauthorizedError, match=why) as caught:
                images.fetch(locator, credentials=credentials)
            assert "wrong" not in caught.value.message
        with pytest.raises(UsageError, match="neither a user nor a token"):
            images.fetch(locator, credentials=FetchCredentials(password="hunter22"))
        record = images.fetch(locator, credentials=FetchCredentials("user", "hunter22", server=registry.host))
        # Whether the source is asked is for the caller to say; a caller without credentials is refused by it.
        assert images.fetch(locator).id == record.id
        with pytest.raises(FetchUnauthorizedError):
            images.fetch(locator, pull="always")
        images.remove(locator)
        kept = subprocess.run(["grep", "-rl", "hunter22", str(here.state)], capture_output=True, text=True)
        assert kept.stdout == ""
        _by_command_line(here, tmp_path, locator)
    assert "hunter22" not in repr(CREDENTIALS)
    with pytest.raises(UsageError, match="of no use for a file"):
        images.fetch("/some/file.aci", credentials=CREDENTIALS)


def _by_command_line(here: Machine, tmp_path: Path, locator: str) -> None:
    environment = {**os.environ, "KURMA_CONFIG": str(here.state) + ".json", "KURMA_DIR": str(here.state)}

    def fetch(file: str, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        command = [*KURMA, "image", "fetch", "--creds-file", file, locator, *words]
        return subprocess.run(command, env=environment, input=typed, capture_output=True, text=True, check=False)

    (tmp_path / "creds").write_text("user:hunter22\n")
    done = fetch(str(tmp_path / "creds"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sha512-")
    assert fetch("-", "--pull", "always", typed="user:hunter22").returncode == 0
    assert "does not accept" in fetch("-", "--pull", "always", typed="user:guess").stderr
    assert "its first line is USER:PASSWORD" in fetch("-", typed="\n").stderr
    assert fetch("-", "docker://second").returncode == 2


def test_credentials_are_not_shown_in_json() -> None:
    text = json.dumps(CREDENTIALS.to_json())
    assert FetchCredentials.from_json(json.loads(text)) == CREDENTIALS
