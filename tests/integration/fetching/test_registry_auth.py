"""Who we are to a registry: TLS and passwords of a real one, and a token server before one (R1, R2)."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from kurma_core.errors import (
    ConfigError,
    FetchError,
    FetchNotFoundError,
    FetchUnauthorizedError,
    ImageNotFoundError,
    UsageError,
)
from kurma_core.models.image import FetchCredentials
from tests.integration.fetching.front import Front, Tokens, front
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.kit.command import KURMA
from tests.kit.registry import OciDir, Registry, layer_tar, running_registry

pytestmark = pytest.mark.root

#: Makes a machine that knows the test authority, and has these credentials in Docker's file.
WithLogin = Callable[..., Machine]


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    found = trustme.CA()
    found.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return found


@pytest.fixture
def with_login(machine: MakeMachine, authority: trustme.CA, tmp_path: Path) -> WithLogin:
    def make(name: str, **config: Any) -> Machine:
        (tmp_path / f"{name}-login.json").write_text(json.dumps(config))
        options = {"ca_file": str(tmp_path / "ca.pem"), "docker_config": str(tmp_path / f"{name}-login.json")}
        return machine(name, plugins={"fetchers": {"docker": {"config": options}}})

    return make


@pytest.fixture
def tokens(registry: Registry, oci: OciDir, authority: trustme.CA) -> Iterator[Front]:
    """A registry over TLS with a token server: public/app and team/app, v1, of three layers each."""
    oci.image("v1", [layer_tar({f"file{n}": os.urandom(200_000)}) for n in range(3)], {"Cmd": ["/file1"]})
    for name in ("public/app:v1", "team/app:v1"):
        registry.push(f"oci:{oci.path}:v1", name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with front(registry.host, context, Tokens()) as found:
        yield found


BASIC = {"auth": "dXNlcjpzZWNyZXQ="}


@pytest.fixture
def closed(authority: trustme.CA, tmp_path: Path, oci: OciDir) -> Iterator[Registry]:
    """docker-registry with a certificate of the test authority and a file that htpasswd wrote: team/app, v1."""
    subprocess.run(
        ["htpasswd", "-Bbc", str(tmp_path / "users"), "user", "secret"], check=True, capture_output=True
    )
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    tls = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "users")}}
    oci.image("v1", [layer_tar({"file": b"content"})], {"Cmd": ["/file"]})
    with running_registry(tmp_path / "closed", auth=auth, tls=tls) as registry:
        registry.push(f"oci:{oci.path}:v1", "team/app:v1", "--dest-creds=user:secret")
        yield registry


def test_tls_and_a_password_file(with_login: WithLogin, closed: Registry) -> None:
    locator = f"docker://{closed.host}/team/app:v1"
    right = with_login("right", auths={closed.host: BASIC})
    assert right.images.fetch(locator).trust == "digest"
    assert right.notes == []
    narrow = with_login("narrow", auths={closed.host: {"auth": "eDp5"}, f"{closed.host}/team": BASIC})
    assert narrow.images.fetch(locator)
    token = with_login("token", auths={closed.host: {"identitytoken": "x"}})
    with pytest.raises(FetchUnauthorizedError, match=r"token-login\.json has only a token"):
        token.images.fetch(locator)
    wrong = with_login("wrong", auths={closed.host: {"auth": "dXNlcjp3cm9uZw=="}})
    rejected = r"does not accept the credentials from .*wrong-login\.json"
    for one, reason in ((wrong, rejected), (with_login("none"), "requires credentials, and kurma has none")):
        with pytest.raises(FetchUnauthorizedError, match=reason) as caught:
            one.images.fetch(locator)
        assert caught.value.hint == f"kurma login {closed.host}; or the name is wrong"


def test_logging_in_and_out(machine: MakeMachine, authority: trustme.CA, closed: Registry, tmp_path: Path) -> None:
    """18.2: the fetcher that owns the scheme checks and keeps the credentials, beside the configuration."""
    options = {"ca_file": str(tmp_path / "ca.pem"), "docker_config": str(tmp_path / "none")}
    config: dict[str, Any] = {"plugins": {"fetchers": {"docker": {"config": options}}}}
    here = machine("here", **config).images
    address, file = f"docker://{closed.host}", tmp_path / "auth.d" / f"login-{closed.host}.json"
    with pytest.raises(FetchUnauthorizedError, match="does not accept the credentials from the command line"):
        here.log_in(address, "user", "wrong")
    assert not file.exists()
    assert here.log_in(address, "user", "secret") == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert machine("there", **config).images.fetch(f"{address}/team/app:v1").trust == "digest"
    assert here.log_out(address) == str(file)
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "here").mkdir(exist_ok=True)
    environment = {**os.environ, "KURMA_CONFIG": str(tmp_path / "here.json"), "KURMA_DIR": str(tmp_path / "here")}

    def kurma(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*KURMA, *words], env=environment, input=typed, capture_output=True, text=True, check=False
        )

    for words, typed in (
        (("login", "-u", "user", "--password-stdin", closed.host), "secret\n"),
        (("login", "--username", "user", "--passphrase-file", str(tmp_path / "secret"), address), ""),
        (("image", "login", closed.host, "-u", "user", "--password-stdin"), "secret"),
    ):
        host = closed.host if closed.host in words else address
        done = kurma(*words, typed=typed)
        assert (done.returncode, done.stdout) == (0, f"logged in to {host} as user: {file}\n"), done.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        done = kurma("logout", host)
        assert (done.returncode, done.stdout) == (0, f"logged out of {host}: removed {file}\n"), done.stderr
        assert not file.exists()
    refused = kurma("login", "-u", "user", "--password-stdin", closed.host, typed="guess\n")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "does not accept the credentials from the command line\n  hint: check the user name" in refused.stderr
    assert "guess" not in refused.stderr
    assert not file.exists()
    for words, said in (
        (("login", "--password-stdin", closed.host), f"cannot log in to {closed.host}: no user name"),
        (("login", "-u", "user", closed.host), f"cannot log in to {closed.host}: no password"),
        (("login", "-u", "user", "--password-stdin"), "cannot log in to a registry: no host is given"),
        (("logout",), "cannot log out of a registry: no host is given"),
        (("login", "-u", "user", "-p", "secret", closed.host), "--password-stdin: other users can read"),
    ):
        wrong = kurma(*words, typed="secret\n" if "--password-stdin" in words else "")
        assert wrong.returncode == 2
        assert said in wrong.stderr
    config["short_names"] = closed.host
    machine("here", **config)
    assert kurma("login", "-u", "user", "--password-stdin", typed="secret\n").returncode == 0
    assert kurma("logout").returncode == 0
    with pytest.raises(FetchUnauthorizedError, match="requires credentials, and kurma has none"):
        machine("later", **config).images.fetch(f"{address}/team/app:v1")
    with pytest.raises(FetchError, match="is not logged in"):
        here.log_out(address)
    (tmp_path / "auth.d" / "first.json").write_text(
        json.dumps({"hosts": [closed.host], "type": "basic", "user": "other", "password": "x"})
    )
    (tmp_path / "auth.d" / "first.json").chmod(0o600)
    with pytest.raises(ConfigError, match="is read first"):
        here.log_in(address, "user", "secret")
    assert not file.exists()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("https://example.com", "the fetcher of this scheme does not log in"),
        ("./file", "not the address of a registry"),
        ("file:///x", "is not the address of a source"),
        ("example.com/app", "not the address of a registry"),
        ("", "is not the address of a source"),
        ("docker://quay.io/app", "not the address of a registry"),
    ],
)
def test_where_one_cannot_log_in(machine: MakeMachine, address: str, reason: str) -> None:
    with pytest.raises((FetchError, UsageError), match=reason):
        machine().images.log_in(address, "user", "secret")
    with pytest.raises((FetchError, UsageError), match=reason):
        machine().images.log_out(address)


def test_short_names_of_registries(machine: MakeMachine, registry: Registry, oci: OciDir) -> None:
    """19.3: ``short_names`` says what a name without a host means; the store is asked first."""
    oci.image("v1", [layer_tar({"file": b"content"})], {"Cmd": ["/file"]})
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    here = machine(short_names=registry.host).images
    found = here.resolve("team/app:v1")
    (came,) = found.provenance
    assert (came.locator, came.source) == (f"docker://{registry.host}/team/app:v1", "registry")
    for name in ("team/app:v1", f"{registry.host}/team/app:v1"):
        assert here.resolve(name, pull="never").id == found.id
        assert here.get(name).id == found.id
    with pytest.raises(ImageNotFoundError, match=f"docker://{registry.host}/team/other:v1: not in the store"):
        here.resolve("team/other:v1", pull="never")
    with pytest.raises(FetchNotFoundError):
        here.resolve("team/other:v1")
    here.remove("team/app:v1")
    with pytest.raises(ImageNotFoundError):
        here.get("team/app:v1")


def test_anonymous_pulls(with_login: WithLogin, tokens: Front) -> None:
    here = with_login("anonymous")
    assert here.images.fetch(f"docker://{tokens.host}/public/app:v1").trust == "digest"
    (asked,) = tokens.tokens_asked()
    assert (asked.method, asked.authorization) == ("GET", "")
    with pytest.raises(FetchUnauthorizedError, match=r"denies access without credentials \(team/app\)"):
        here.images.fetch(f"docker://{tokens.host}/team/app:v1")


def test_a_password_for_a_token(with_login: WithLogin, tokens: Front) -> None:
    here = with_login("password", auths={tokens.host: BASIC})
    assert here.images.fetch(f"docker://{tokens.host}/team/app:v1")
    (asked,) = tokens.tokens_asked()
    assert asked.authorization == "Basic dXNlcjpzZWNyZXQ="
    assert all(not a.authorization.startswith("Basic") for a in tokens.asked if a.path != "/token")
    wrong = with_login("wrong", auths={tokens.host: {"auth": "dXNlcjp3cm9uZw=="}})
    with pytest.raises(FetchUnauthorizedError, match="does not accept the credentials from "):
        wrong.images.fetch(f"docker://{tokens.host}/team/app:v1")


def test_an_identity_token(with_login: WithLogin, tokens: Front) -> None:
    here = with_login("identity", auths={tokens.host: {"identitytoken": "refresh"}})
    assert here.images.fetch(f"docker://{tokens.host}/team/app:v1")
    (asked,) = tokens.tokens_asked()
    assert asked.method == "POST"
    assert "grant_type=refresh_token" in asked.body
    old = with_login("old", auths={tokens.host: {"identitytoken": "expired"}})
    with pytest.raises(FetchUnauthorizedError, match="does not accept the credentials from "):
        old.images.fetch(f"docker://{tokens.host}/team/app:v1")


def test_tokens_of_one_fetch(with_login: WithLogin, tokens: Front) -> None:
    """C19: each kind of token that a caller gives for a fetch."""
    assert tokens.tokens is not None
    locator = f"docker://{tokens.host}/team/app:v1"
    here = with_login("none")
    assert here.images.fetch(locator, credentials=FetchCredentials(identity_token="refresh"))
    (asked,) = tokens.tokens_asked()
    assert "refresh_token=refresh" in asked.body
    token = tokens.tokens.issue("repository:team/app:pull", allowed=True)
    assert token is not None
    there = with_login("other")
    assert there.images.fetch(locator, credentials=FetchCredentials(registry_token=token))
    assert len(tokens.tokens_asked()) == 1


@pytest.mark.full
def test_tokens_that_run_out_in_the_middle(with_login: WithLogin, tokens: Front) -> None:
    """Each token is good for six requests, and each connection is cut after 60 kB: a layer is asked for several
    times, by several threads, each with a token that may have run out meanwhile."""
    assert tokens.tokens is not None
    tokens.tokens.uses = 6
    tokens.cut = lambda path: 60_000 if "/blobs/" in path else None
    here = with_login("short", auths={tokens.host: BASIC})
    record = here.images.fetch(f"docker://{tokens.host}/team/app:v1")
    assert len(record.layers) == 3
    blobs = [asked for asked in tokens.asked if "/blobs/" in asked.path and asked.sent]
    assert len(blobs) >= 10
    assert len(tokens.tokens_asked()) >= len(blobs) // 6
    assert sum(asked.sent for asked in blobs) < 620_000, "nothing is fetched twice"
    assert here.partials() == []
