"""Images that ``kurma image build`` puts into the store: signed with a key that counts for names alone (19.3)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kurma_core.trust.machine_key import _end_agent
from tests.kit.command import Kurma, one_line
from tests.kit.images import BUSYBOX
from tests.kit.keys import Signers
from tests.kit.waiting import until

pytestmark = pytest.mark.root
BUILT = "the key of images built here"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/sh")
    return root


def built(kurma: Kurma, tree: Path, name: str, *options: str, says: str = "built here") -> str:
    """The ID of an image that prints ``says``."""
    words = ("--from-rootfs", str(tree), "--name", name, *options)
    return kurma.out("image", "build", *words, "--exec", f"/bin/sh -c 'echo {says}'").strip()


def run(kurma: Kurma, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return kurma("run", "--rm", "--net", "none", *options, name)


def fingerprint(kurma: Kurma) -> str:
    return (kurma.state / "build_key/fingerprint").read_text().strip()


def configured(kurma: Kurma, tmp_path: Path, **values: Any) -> Kurma:
    return kurma.configured(tmp_path / "other.json", **values)


# --- its name ---------------------------------------------------------------------------------------------------


def test_it_runs_by_its_name(fresh: Kurma, tree: Path) -> None:
    image = built(fresh, tree, "web")
    assert built(fresh, tree, "web") == image
    assert run(fresh, "web").stdout == "built here\n"
    (way,) = fresh.json("image", "show", "web")["provenance"]
    assert (way["trust"], way["source"], way["fingerprint"]) == ("local", None, fingerprint(fresh))


def test_its_newest_build_runs(fresh: Kurma, tree: Path) -> None:
    first = built(fresh, tree, "web")
    second = built(fresh, tree, "web", says="built again")
    assert first != second
    assert run(fresh, "web").stdout == "built again\n"


def test_the_key_is_roots_alone_and_a_second_one(fresh: Kurma, tree: Path) -> None:
    built(fresh, tree, "web")
    fresh.out("stager", "build", "default")
    home = fresh.state / "build_key"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"private-keys-v1.d", "build_key"}
    assert {path.stat().st_uid for path in [home, *files]} == {0}
    assert not [path for path in files if path.parent != home and stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert fingerprint(fresh) != (fresh.state / "keys/fingerprint").read_text().strip()


@pytest.mark.full
def test_builds_at_once_make_one_key(fresh: Kurma, tree: Path) -> None:
    words = ("image", "build", "--from-rootfs", str(tree), "--exec", "/bin/sh -c 'echo hello'", "--name")
    builds = [fresh.popen(*words, f"web{number}") for number in range(4)]
    for build in builds:
        said = build.communicate(timeout=60)
        assert build.returncode == 0, said
    ways = [one["provenance"][0]["fingerprint"] for one in fresh.json("image", "list")]
    assert ways == [fingerprint(fresh)] * 4


@pytest.mark.full
@pytest.mark.parametrize("reached", ["build_key", "build_key/private-keys-v1.d", "build_key/public.asc"])
def test_a_build_that_is_killed(fresh: Kurma, tree: Path, reached: str) -> None:
    """While the key is made, and after: the next build makes one key, or takes the one that is there."""
    words = ("image", "build", "--from-rootfs", str(tree), "--name", "web", "--exec", "/bin/sh -c 'echo hello'")
    with fresh.popen(*words, start_new_session=True) as build:
        until(lambda: (fresh.state / reached).exists(), reached)
        os.killpg(build.pid, signal.SIGKILL)
    built(fresh, tree, "web")
    assert run(fresh, "web").stdout == "built here\n"
    listed = subprocess.run(
        ["gpg", "--homedir", fresh.state / "build_key", "--with-colons", "--list-secret-keys"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    _end_agent_of(fresh)
    assert [line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")] == [fingerprint(fresh)]


def test_another_state_directorys_build(fresh: Kurma, tree: Path, tmp_path: Path) -> None:
    """A copied store, without its key: the image is there, and its name does not find it."""
    image = built(fresh, tree, "web")
    other = Kurma(tmp_path / "copy", fresh.config, fresh.image)
    other.state.mkdir()
    subprocess.run(["cp", "-a", fresh.state / "images", other.state / "images"], check=True)
    refused = run(other, "web")
    one_line(refused, "was built here, and its key is not this state directory's", hint="name it by its ID")
    assert run(other, image).stdout == "built here\n"
    built(other, tree, "web")
    assert run(other, "web").stdout == "built here\n"


def test_a_pod_restarts_without_the_key(fresh: Kurma, tree: Path) -> None:
    built(fresh, tree, "web")
    fresh.out("run", "--name", "web", "--net", "none", "web")
    shutil.rmtree(fresh.state / "build_key")
    assert fresh.out("start", "web") == "built here\n"


# --- a publisher's key ---


@pytest.fixture
def published(tree: Path, tmp_path: Path, fresh: Kurma, signers: Signers) -> str:
    """The path of an archive of ``example.com/web`` that its publisher signed."""
    path = tmp_path / "web.aci"
    words = ("--from-rootfs", str(tree), "--name", "example.com/web", "-o", str(path))
    fresh.out("image", "build", *words, "--exec", "/bin/sh -c 'echo published'")
    signers.sign_beside(str(path), "alice")
    return str(path)


def test_a_publishers_key_wins(fresh: Kurma, tree: Path, tmp_path: Path, signers: Signers, published: str) -> None:
    """Whether it comes before the build or after it, and whether its image is in the store or not."""
    keys = tmp_path / "keys"
    mine = configured(fresh, tmp_path, trustedkeys=[str(keys)])
    image = built(mine, tree, "example.com/web")
    assert run(mine, "example.com/web").stdout == "built here\n"
    file = signers.put("alice", keys, "prefix.d/example.com")
    refused = run(mine, "example.com/web", "--pull", "never")
    one_line(refused, "was built here, and a key is trusted for that name", file.name, hint=image[:19])
    assert run(mine, image).stdout == "built here\n"
    mine.out("image", "fetch", published)
    assert run(mine, "example.com/web").stdout == "published\n"
    built(mine, tree, "example.com/web", says="built later")
    assert run(mine, "example.com/web").stdout == "published\n"
    file.unlink()
    assert run(mine, "example.com/web").stdout == "built later\n"


def test_a_policy_that_takes_any_image_prefers_those_of_others(
    fresh: Kurma, tree: Path, tmp_path: Path, signers: Signers, published: str
) -> None:
    """By its own name, and as a dependency; and a key for the name closes it to the build."""
    keys = tmp_path / "keys"
    mine = configured(fresh, tmp_path, trustedkeys=[str(keys)], trust={"named": "any"})
    above = tmp_path / "above"
    (above / "rootfs").mkdir(parents=True)
    manifest = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": "above",
        "app": {"exec": ["/bin/sh", "-c", "[ -e /later ] || echo published"], "user": "0", "group": "0"},
        "dependencies": [{"imageName": "example.com/web"}],
    }
    (above / "manifest").write_text(json.dumps(manifest))
    mine.out("image", "build", str(above))
    image = built(mine, tree, "example.com/web")
    assert run(mine, "example.com/web").stdout == "built here\n"
    assert run(mine, "above").returncode == 0
    file = signers.put("alice", keys, "prefix.d/example.com")
    strict = fresh.configured(tmp_path / "strict.json", trustedkeys=[str(keys)])
    for refused in (
        run(mine, "example.com/web", "--pull", "never"),
        run(strict, "example.com/web", "--pull", "never", "--insecure-options", "image"),
    ):
        one_line(refused, "was built here, and a key is trusted for that name", file.name, hint=image[:19])
    above_it = ("above", "--pull", "never")
    words = "above depends on example.com/web: the image in the store was built here, and a key is trusted"
    for refused in (run(mine, *above_it), run(strict, *above_it)):
        one_line(refused, words, file.name, hint="the whole imageID")
    relaxed = run(strict, *above_it, "--insecure-options", "image")
    assert relaxed.returncode == 125
    assert words in relaxed.stderr
    mine.out("image", "fetch", published)
    (tree / "later").touch()
    built(mine, tree, "example.com/web", says="built later")
    for key_is_trusted in (True, False):
        for name in ("example.com/web", "above"):
            assert run(mine, name).stdout == "published\n"
            assert run(strict, name, "--insecure-options", "image").stdout == "published\n"
        if key_is_trusted:
            file.unlink()


def test_a_key_for_all_names_wins(fresh: Kurma, tree: Path, tmp_path: Path, signers: Signers) -> None:
    keys = tmp_path / "keys"
    mine = configured(fresh, tmp_path, trustedkeys=[str(keys)])
    signers.put("alice", keys, "root.d")
    built(mine, tree, "web")
    one_line(run(mine, "web"), "was built here, and a key is trusted for that name")


# --- the host's power ---


def test_a_stager_image_is_refused(fresh: Kurma, tmp_path: Path, tree: Path) -> None:
    fresh.out("image", "fetch", fresh.image)
    image = built(fresh, tree, "example.com/stager")
    for name in ("example.com/stager", "stager"):
        built(fresh, tree, name)
        mine = configured(fresh, tmp_path, stagers={"mine": {"image": name}}, stager="mine")
        one_line(mine.run("exit 0"), f"{name}: cannot run with host privilege", BUILT, hint="image sign")
    mine = configured(fresh, tmp_path, stagers={"mine": {"image": image}}, stager="mine")
    assert mine.run("exit 0").returncode != 0, "an ID is not the name of a stager's image either"


def test_a_network_image_is_refused(fresh: Kurma, tmp_path: Path, tree: Path) -> None:
    fresh.out("image", "fetch", fresh.image)
    built(fresh, tree, "example.com/net")
    network = {"name": "mine", "aci": "example.com/net"}
    mine = configured(fresh, tmp_path, container_networks=[network])
    one_line(mine.run("exit 0", net="mine"), "example.com/net: cannot run with host privilege", BUILT)


def test_it_is_never_one_of_the_hosts_keys(fresh: Kurma, tmp_path: Path, tree: Path) -> None:
    """Listed by hand, its public half put into ``host.d``, and the archive signed with it by root's own gpg."""
    fresh.out("image", "fetch", fresh.image)
    built(fresh, tree, "web")
    key = fingerprint(fresh)
    path = tmp_path / "stager.aci"
    words = ("--from-rootfs", str(tree), "--name", "example.com/stager", "--exec", "/bin/sh", "-o", str(path))
    fresh.out("image", "build", *words)
    fresh.out("image", "sign", "--key", key, str(path), env={"GNUPGHOME": str(fresh.state / "build_key")})
    keys = tmp_path / "keys/host.d"
    keys.mkdir(parents=True)
    shutil.copy(fresh.state / "build_key/public.asc", keys / key)
    stagers = {"mine": {"image": str(path)}}
    common = {"stagers": stagers, "stager": "mine", "trustedkeys": [str(tmp_path / "keys")]}
    mine = configured(fresh, tmp_path, trusted_host_keys=[key], **common)
    one_line(mine.run("exit 0"), f"trusted_host_keys in kurma.yml lists {key}", BUILT, hint="remove it")
    mine = configured(fresh, tmp_path, **common)
    one_line(mine.run("exit 0"), "stager.aci: cannot run with host privilege", key)
    _end_agent_of(fresh)


def test_it_satisfies_no_grant(fresh: Kurma, tmp_path: Path, tree: Path) -> None:
    """Not by the image's name, and not with its public half among the trusted keys of that name."""
    power = {"name": "os/linux/capabilities-retain-set", "value": {"set": ["CAP_NET_ADMIN"]}}
    manifest = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": "web",
        "app": {"exec": ["/bin/sh", "-c", "echo powerful"], "user": "0", "group": "0", "isolators": [power]},
    }
    (tmp_path / "manifest").write_text(json.dumps(manifest))
    fresh.out("image", "build", "--from-rootfs", str(tree), "--manifest", str(tmp_path / "manifest"))
    key = fingerprint(fresh)
    place = tmp_path / "keys/prefix.d/web"
    place.mkdir(parents=True)
    shutil.copy(fresh.state / "build_key/public.asc", place / key)
    for grant in ({"images": ["web"]}, {"images": ["web"], "signers": [key]}):
        grants = {"mine": {**grant, "isolators": ["os/linux/capabilities-retain-set=CAP_NET_ADMIN"]}}
        mine = configured(fresh, tmp_path, grants=grants, trustedkeys=[str(tmp_path / "keys")])
        refused = run(mine, "web")
        one_line(refused, "no grant of kurma.yml gives it")
    (image,) = fresh.json("image", "list")
    grants = {"mine": {"digests": [image["id"]], "isolators": ["os/linux/capabilities-retain-set=CAP_NET_ADMIN"]}}
    mine = configured(fresh, tmp_path, grants=grants)
    assert run(mine, "web").stdout == "powerful\n", "the admin's own word for that content"


def test_its_public_half_cannot_be_trusted(fresh: Kurma, tree: Path, tmp_path: Path) -> None:
    built(fresh, tree, "web")
    mine = configured(fresh, tmp_path, trustedkeys=[str(tmp_path / "keys")])
    public = str(fresh.state / "build_key/public.asc")
    refused = mine("trust", "add", "--yes", "--prefix", "web", public)
    assert refused.returncode == 125
    assert f"cannot trust the key {fingerprint(fresh)}: it is {BUILT}" in refused.stderr
    assert not (tmp_path / "keys").exists()


def test_it_is_no_dependency_of_a_signed_image(fresh: Kurma, tree: Path, tmp_path: Path, signers: Signers) -> None:
    """A dependency by name is vouched for as well as the image that names it."""
    built(fresh, tree, "base")
    above = tmp_path / "above"
    (above / "rootfs").mkdir(parents=True)
    manifest = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": "example.com/above",
        "app": {"exec": ["/bin/sh", "-c", "echo above"], "user": "0", "group": "0"},
        "dependencies": [{"imageName": "base"}],
    }
    (above / "manifest").write_text(json.dumps(manifest))
    path = tmp_path / "above.aci"
    fresh.out("image", "build", str(above), "-o", str(path))
    signers.sign_beside(str(path), "alice")
    signers.put("alice", tmp_path / "keys", "prefix.d/example.com")
    mine = configured(fresh, tmp_path, trustedkeys=[str(tmp_path / "keys")])
    one_line(run(mine, str(path)), "example.com/above depends on base")
    # One that was built here, too, may stand on it.
    fresh.out("image", "build", str(above), "--name", "above")
    assert run(fresh, "above").stdout == "above\n"


# --- other users ---


def test_a_user_other_than_root_builds_files_alone(fresh: Kurma, tree: Path, tmp_path: Path) -> None:
    words = ("image", "build", "--from-rootfs", str(tree), "--name", "web", "--exec", "/bin/sh")
    as_user = ["unshare", "--user", "--map-user=1000", fresh.program]
    refused = subprocess.run(
        [*as_user, *words], capture_output=True, text=True, env=fresh.environment, check=False, timeout=60
    )
    one_line(refused, "cannot build an image into the store: only root can", hint="-o FILE.aci")
    assert not fresh.state.exists()
    file = [*as_user, *words, "-o", str(tmp_path / "web.aci")]
    subprocess.run(file, env=fresh.environment, check=True, timeout=60)
    assert (tmp_path / "web.aci").exists()


def test_options_of_files_need_one(fresh: Kurma, tree: Path) -> None:
    words = ("image", "build", "--from-rootfs", str(tree), "--name", "web", "--exec", "/bin/sh")
    for option in (("--compress", "xz"), ("--encrypt",)):
        one_line(fresh(*words, *option), f"{option[0]} needs an archive", hint="-o FILE.aci", code=2)


def _end_agent_of(kurma: Kurma) -> None:
    _end_agent(str(kurma.state / "build_key"))
