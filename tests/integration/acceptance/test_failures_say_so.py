"""What cannot be done is said in one clear line, with exit code 125, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from kurma_testing.webserver import web_server

from tests.kit.command import PROGRAM, Kurma, one_line
from tests.kit.host import small_file_system
from tests.kit.images import foreign_stager
from tests.kit.installed import unpack
from tests.kit.keys import Signers
from tests.kit.registry import Registry

pytestmark = pytest.mark.root


def _without_relaxations(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Without the lines that tell of checks that the caller has relaxed."""
    lines = [line for line in done.stderr.splitlines(True) if "--insecure-options" not in line]
    done.stderr = "".join(line for line in lines if "plain http (it is on this machine)" not in line)
    return done


@pytest.mark.usefixtures("unchanged")
class TestImages:
    def test_unknown_path(self, kurma: Kurma) -> None:
        one_line(kurma("run", "/no/such/image.aci"), "/no/such/image.aci", "no such file")

    def test_unknown_relative_path(self, kurma: Kurma, tmp_path: Path) -> None:
        one_line(kurma("run", "./nothing.aci", cwd=tmp_path), "nothing.aci")

    def test_unknown_name(self, kurma: Kurma) -> None:
        one_line(kurma("run", "example.com/nowhere:1.0"), "example.com/nowhere")

    def test_name_that_is_not_in_the_store(self, kurma: Kurma) -> None:
        one_line(kurma("run", "--pull", "never", "example.com/nowhere:1.0"), "example.com/nowhere", "store")

    def test_unknown_id(self, kurma: Kurma) -> None:
        one_line(kurma("run", "sha512-0123456789ab"), "sha512-0123456789ab")

    def test_url_that_is_not_there(self, kurma: Kurma) -> None:
        with web_server() as server:
            done = kurma("run", "--insecure-options", "http,image", server.url("/none.aci"))
        said = _without_relaxations(done)
        one_line(said, "/none.aci", "not found")

    def test_url_that_nobody_serves(self, kurma: Kurma) -> None:
        done = kurma("run", "--insecure-options", "http,image", "http://127.0.0.1:9/x.aci")
        one_line(_without_relaxations(done), "http://127.0.0.1:9/x.aci", "refused")

    @pytest.mark.parametrize("name", ["no/such:1", "there:nowhere"])
    def test_repository_or_tag_that_is_not_there(self, kurma: Kurma, registry: Registry, name: str) -> None:
        done = kurma("run", f"docker://{registry.host}/{name}")
        one_line(_without_relaxations(done), "not found", name.partition(":")[0])

    def test_scheme_that_no_plugin_serves(self, kurma: Kurma) -> None:
        one_line(kurma("run", "gopher://example.com/image"), "gopher")

    def test_garbage(self, kurma: Kurma, tmp_path: Path) -> None:
        (tmp_path / "x.aci").write_bytes(os.urandom(100_000))
        one_line(kurma("run", str(tmp_path / "x.aci")), "x.aci")

    def test_empty(self, kurma: Kurma, tmp_path: Path) -> None:
        (tmp_path / "x.aci").write_bytes(b"")
        one_line(kurma("run", str(tmp_path / "x.aci")), "x.aci")

    def test_truncated(self, kurma: Kurma, tmp_path: Path) -> None:
        content = Path(kurma.image).read_bytes()
        (tmp_path / "x.aci").write_bytes(content[: len(content) // 2])
        one_line(kurma("run", str(tmp_path / "x.aci")), "x.aci")

    def test_truncated_and_compressed(self, kurma: Kurma, tmp_path: Path) -> None:
        packed = subprocess.run(["gzip", "-1c", kurma.image], capture_output=True, check=True).stdout
        (tmp_path / "x.aci").write_bytes(packed[: len(packed) // 2])
        one_line(kurma("run", str(tmp_path / "x.aci")), "x.aci")

    def test_archive_that_is_no_image(self, kurma: Kurma, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo("some/file"))
        one_line(kurma("run", str(tmp_path / "x.tar")), "x.tar")

    @pytest.mark.parametrize("name", ["rootfs/../../escaped", "/rootfs/absolute"])
    def test_hostile(self, kurma: Kurma, tmp_path: Path, name: str) -> None:
        manifest = json.dumps({"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/x"}).encode()
        with tarfile.open(tmp_path / "x.aci", "w") as tar:
            for entry, content in (("manifest", manifest), ("rootfs", None), (name, b"content")):
                info = tarfile.TarInfo(entry)
                info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
                info.size = len(content or b"")
                tar.addfile(info, io.BytesIO(content or b""))
        one_line(kurma("run", str(tmp_path / "x.aci")), "x.aci")

    def test_directory(self, kurma: Kurma, tmp_path: Path) -> None:
        one_line(kurma("run", str(tmp_path)), str(tmp_path))


@pytest.mark.usefixtures("unchanged")
class TestRequests:
    def test_unknown_network(self, kurma: Kurma) -> None:
        one_line(kurma.run("true", net="nowhere"), "nowhere", hint="default")

    def test_unknown_stager(self, kurma: Kurma) -> None:
        one_line(kurma.run("true", "--stager", "nobody"), "nobody", hint="default")

    def test_unknown_renderer(self, kurma: Kurma) -> None:
        one_line(kurma.run("true", "--renderer", "nothing"), "nothing", hint="overlay")

    def test_missing_volume_source(self, kurma: Kurma) -> None:
        one_line(kurma.run("true", "-v", "/no/such/place:/data"), "/no/such/place")

    def test_volume_source_behind_a_link(self, kurma: Kurma, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("/etc")
        one_line(kurma.run("true", "-v", f"{tmp_path}/link:/data"), "link", hint="--allow-volume-links")

    def test_mount_of_a_volume_that_is_not_there(self, kurma: Kurma) -> None:
        one_line(kurma.run("true", "--mount", "volume=none,target=/x"), "none")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--name", "Not A Name"), "Not A Name"),
            (("-p", "80"), "'80'"),
            (("-p", "99999:80"), "99999"),
            (("-p", "80:80/icmp"), "icmp"),
            (("-v", "nothing"), "nothing"),
            (("--mount", "what"), "what"),
            (("--volume", "name=x,kind=odd"), "odd"),
            (("--net", "default,ip=here"), "here"),
            (("--dns", "example.com"), "example.com"),
            (("--hosts-entry", "db"), "db"),
            (("-e", "=x"), "=x"),
            (("--env-file", "/no/such/env"), "/no/such/env"),
            (("--isolator", "os/linux/x=not json"), "os/linux/x"),
            (("--insecure-options", "everything"), "everything"),
            (("--pull", "sometimes"), "sometimes"),
            (("--no-such-option",), "--no-such-option"),
        ],
    )
    def test_bad_values_of_options(self, kurma: Kurma, options: tuple[str, ...], said: str) -> None:
        done = kurma("run", kurma.image, *options)
        one_line(done, said, code=done.returncode)
        assert done.returncode in (2, 125)

    def test_option_without_its_value(self, kurma: Kurma) -> None:
        one_line(kurma("run", kurma.image, "--user"), "--user", code=2)

    @pytest.mark.parametrize("user", ["nobody-here", "/no/such/file"])
    def test_user_that_the_image_does_not_have(self, kurma: Kurma, user: str) -> None:
        one_line(kurma.run("true", "--user", user), user)

    @pytest.mark.parametrize(
        ("document", "said"),
        [
            ("apps: [", "pod.yml"),
            ("[]", "apps"),
            ("apps: [{image: x}]", "name"),
            ("apps: [{name: a, image: IMAGE, app: {exec: true, user: '0', group: '0'}}]", "apps[0].app.exec"),
            ("apps: [{name: a, image: IMAGE}, {name: a, image: IMAGE}]", "apps[1].name"),
            ("{apps: [{name: a, image: IMAGE}], volumes: [{name: v, kind: odd}]}", "volumes[0].kind"),
            ("{apps: [{name: a, image: IMAGE}], networks: [nowhere]}", "nowhere"),
            ("{apps: [{name: a, image: IMAGE}], networks: default}", "networks"),
        ],
    )
    def test_bad_pod_file(self, kurma: Kurma, tmp_path: Path, document: str, said: str) -> None:
        file = tmp_path / "pod.yml"
        file.write_text(document.replace("IMAGE", kurma.image))
        done = kurma("run", "--pod", str(file))
        one_line(done, said, code=done.returncode)
        assert done.returncode in (2, 125)

    def test_missing_pod_file(self, kurma: Kurma) -> None:
        done = kurma("run", "--pod", "/no/such/pod.yml")
        one_line(done, "/no/such/pod.yml", code=done.returncode)
        assert done.returncode in (2, 125)


#: The rest of a configuration in which the network default is CNI's.
BY_CNI = '"container_networks": [{"name": "default", "plugin": "cni", "type": "bridge"}]}'


class TestConfiguration:
    @pytest.mark.parametrize(
        ("text", "said", "hint"),
        [
            ('{"rendrer": "copy"}', ("rendrer",), "renderer"),
            ('{"log": {"sise": 1}}', ("log.sise",), "size"),
            ('{"container_networks": [{"nam": "x"}]}', ("container_networks[0]",), None),
            ('{"stop_timeout": "soon"}', ("stop_timeout", "soon"), None),
            ("{", ("kurma.json",), None),
            ('{"plugins": {"network": {}}}', ("plugins.network",), "networks"),
            (
                '{"plugins": {"networks": {"cni": {"config": {"bin_dir": []}}}}, ' + BY_CNI,
                ("bin_dir",),
                "bin_dirs",
            ),
            (
                '{"container_networks": [{"name": "default", "plugin": "bridge", "subnet": "10.9.0.0/24"}]}',
                ("default", "subnet: unknown key"),
                "did you mean subnets?",
            ),
        ],
    )
    def test_broken(
        self, kurma: Kurma, tmp_path: Path, text: str, said: tuple[str, ...], hint: str | None
    ) -> None:
        before = kurma.traces()
        file = tmp_path / "kurma.json"
        file.write_text(text)
        done = Kurma(kurma.state, file, kurma.image).run("true", net="default")
        one_line(done, *said)
        assert hint is None or hint in done.stderr
        assert kurma.traces() == before

    def test_missing_file(self, kurma: Kurma, tmp_path: Path) -> None:
        one_line(Kurma(kurma.state, tmp_path / "none.yml", kurma.image).run("true"), "none.yml")

    def test_missing_cni_program(self, kurma: Kurma, tmp_path: Path) -> None:
        (tmp_path / "bin").mkdir()
        cni = {"networks": {"cni": {"config": {"bin_dirs": [str(tmp_path / "bin")]}}}}
        network = {"name": "default", "plugin": "cni", "type": "bridge"}
        other = kurma.configured(tmp_path / "k.json", plugins=cni, container_networks=[network])
        other.run("true", net="default")  # the plugin has a directory from its first use on
        before = kurma.traces()
        done = other.run("true", net="default")
        one_line(done, "bridge", str(tmp_path / "bin"), hint="containernetworking-plugins")
        assert kurma.traces() == before


class TestCollisions:
    def test_name_of_a_pod(self, kurma: Kurma) -> None:
        uuid = kurma.out("prepare", "--net", "none", "--name", "taken", kurma.image).strip()
        before = kurma.traces()
        done = kurma.run("true", "--name", "taken")
        one_line(done, "taken", uuid, hint="kurma rm taken")
        assert kurma.traces() == before
        kurma.out("rm", "taken")
        assert kurma.run("exit 3", "--name", "taken").returncode == 3

    @pytest.fixture
    def two_of_a_name(self, tmp_path: Path) -> str:
        """A path with two distributions that both bring a network plugin ``twice``."""
        for name in ("first", "second"):
            unpack(tmp_path / "path", f"kurma-{name}", f"[kurma.networks]\ntwice = kurma_{name}")
        return str(tmp_path / "path")

    def test_name_of_a_plugin(self, kurma: Kurma, two_of_a_name: str) -> None:
        before = kurma.traces()
        environment = {"PYTHONPATH": two_of_a_name}
        words = ("run", "--rm", kurma.image, "--", "-c", "exit 3")
        one_line(kurma(*words, env=environment), "twice", "kurma-first", "kurma-second", hint="uninstall")
        assert kurma.traces() == before
        listing = kurma.out("plugins", "list", env=environment)
        lines = [line for line in listing.splitlines() if "twice" in line]
        assert lines
        assert all("failed" in line for line in lines)

    def test_name_of_a_plugin_that_is_disabled(self, kurma: Kurma, two_of_a_name: str, tmp_path: Path) -> None:
        off = kurma.configured(tmp_path / "k.json", plugins={"networks": {"twice": {"enabled": False}}})
        words = ("run", "--rm", "--net", "none", kurma.image, "--", "-c", "exit 3")
        done = off(*words, env={"PYTHONPATH": two_of_a_name})
        assert done.returncode == 3, done.stderr


def fill_up(path: Path) -> None:
    """To the last byte that can be had."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
    finally:
        os.close(descriptor)


@pytest.mark.full
class TestFullDisk:
    def test_at_fetch(self, shared: Kurma, tmp_path: Path) -> None:
        with small_file_system(tmp_path / "disk", "size=3m,mode=0755") as disk:
            kurma = Kurma(disk, shared.config, shared.image)
            kurma("image", "list")
            one_line(kurma("image", "fetch", shared.image), "no space left", hint="make room")
            assert not [path for path in kurma.traces() if path.count("/") > 1]
            assert kurma.json("image", "list") == []

    def test_at_the_stagers_build(self, shared: Kurma, tmp_path: Path) -> None:
        with small_file_system(tmp_path / "disk", "size=10m,mode=0755") as disk:
            kurma = Kurma(disk, shared.config, shared.image)
            kurma.out("image", "fetch", shared.image)
            before = {path for path in kurma.traces() if path.startswith("images/")}
            one_line(kurma("stager", "build", "default"), "no space left")
            assert {path for path in kurma.traces() if path.startswith("images/")} <= before | BUILD_PLACES
            one_line(kurma.run("true"), "no space left")
            assert kurma.json("list") == []

    def test_at_run(self, kurma: Kurma, tmp_path: Path) -> None:
        """The disk is full when a pod is made; once it is not, pods run."""
        with small_file_system(tmp_path / "disk", "size=300m,mode=0755") as disk:
            full = Kurma(disk / "state", kurma.config, kurma.image)
            assert full.run("exit 3").returncode == 3
            before = full.traces()
            fill = disk / "fill"
            fill_up(fill)
            one_line(full.run("true"), "no space left", code=125)
            fill.unlink()
            assert full.traces() == before
            assert full.run("exit 3").returncode == 3


#: Directories that the first image, and the first build, make.
BUILD_PLACES = frozenset({"images/tmp", "images/archives", "images/layers", "images/images"})


class TestWithoutRoot:
    @pytest.mark.parametrize(
        "words",
        [
            ("run", "IMAGE"),
            ("list",),
            ("gc",),
            ("rm", "x"),
            ("image", "fetch", "IMAGE"),
            ("stager", "build", "default"),
            ("logs", "x"),
            ("network", "rm", "default"),
        ],
    )
    def test_says_so(
        self, tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...], shared: Kurma
    ) -> None:
        words = tuple(shared.image if word == "IMAGE" else word for word in words)
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
        environment = {**os.environ, "KURMA_DIR": "/nonexistent/state"}
        environment.pop("KURMA_CONFIG", None)
        done = subprocess.run(
            [*user, PROGRAM, *words], capture_output=True, text=True, env=environment, check=False, cwd="/"
        )
        one_line(done, hint="root")

    def test_what_needs_none(self) -> None:
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
        environment = {**os.environ, "KURMA_DIR": "/nonexistent/state"}
        for words in (["version"], ["--help"], ["plugins", "list"], ["config", "show"]):
            done = subprocess.run(
                [*user, PROGRAM, *words], capture_output=True, text=True, env=environment, check=False, cwd="/"
            )
            assert done.returncode == 0, done.stderr


class TestStagers:
    """G1: what runs with the host's power is vouched for, and is what was vouched for, or does not run."""

    def test_unsigned(self, kurma: Kurma, tmp_path: Path) -> None:
        image = foreign_stager(tmp_path, "unsigned", "exit 0")
        other = kurma.configured(tmp_path / "k.json", stagers={"x": {"image": image}})
        before = kurma.traces()
        one_line(other.run("true", "--stager", "x"), "unsigned", "not signed", hint="sign it")
        assert kurma.traces() == before

    def test_signed_by_a_key_that_is_not_listed(self, kurma: Kurma, tmp_path: Path, signers: Signers) -> None:
        image = foreign_stager(tmp_path, "strange", "exit 0")
        signers.sign_beside(image, "mallory")
        other = kurma.configured(tmp_path / "k.json", stagers={"x": {"image": image}})
        before = kurma.traces()
        one_line(other.run("true", "--stager", "x"), "strange", signers.fingerprints["mallory"][-16:])
        assert kurma.traces() == before

    @pytest.mark.full
    @pytest.mark.parametrize("what", ["tree", "archive"])
    def test_a_byte_that_was_changed(self, fresh: Kurma, what: str) -> None:
        """In the extracted files, and in the archive that is kept; doing as the hint says mends it."""
        identity = fresh.out("stager", "build", "default").strip()
        assert fresh.run("exit 3").returncode == 3
        if what == "tree":
            (changed,) = fresh.state.glob("images/layers/*/rootfs/opt/stager/lib/start.pyc")
        else:
            changed = fresh.state / "images" / "archives" / f"{identity}.aci"
        content = bytearray(changed.read_bytes())
        content[len(content) // 2] ^= 1
        changed.write_bytes(content)
        before = fresh.traces()
        done = fresh.run("exit 3")
        one_line(done, "was changed", hint="kurma image rm")
        assert fresh.traces() == before
        hint = done.stderr.splitlines()[1]
        for command in re.search(r"kurma image rm .*", hint).group().split(" && "):  # type: ignore[union-attr]
            fresh.out(*command.split()[1:])
        assert fresh.run("exit 3").returncode == 3
