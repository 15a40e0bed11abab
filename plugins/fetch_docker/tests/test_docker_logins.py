"""Where credentials are found: podman's and Docker's files, by repository or registry, and their helpers (R1)."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from kurma_fetch_docker.logins import Login, Logins, usual_files
from kurma_fetch_docker.plugin import DockerFetcher
from kurma_fetch_docker.reference import HUB
from kurma_fetch_http.credentials import Credentials
from kurma_testing import driver_context
from kurma_testing.webserver import Page, WebServer

from kurma_core.errors import FetchUnauthorizedError
from kurma_core.hookspecs.fetcher import FetchRequest
from tests.kit.waiting import alive, until


def entry(user: str, password: str = "p") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def written(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def found(path: Path, registry: str, repository: str = "app") -> str | None:
    """The user's name, of the credentials that one file gives."""
    login = Logins("", str(path)).find(registry, repository)
    return None if login is None else login.user


# --- which entry ---


@pytest.mark.parametrize(
    ("repository", "user"),
    [("team/app", "app"), ("team/other", "team"), ("teams/app", "all"), ("app", "all"), ("team/app/deep", "app")],
)
def test_the_narrowest_entry_counts(tmp_path: Path, repository: str, user: str) -> None:
    names = {"quay.io": "all", "quay.io/team": "team", "quay.io/team/app": "app", "quay.io:5000": "other"}
    file = written(tmp_path / "f", auths={name: entry(name_user) for name, name_user in names.items()})
    assert found(file, "quay.io", repository) == user


def test_an_entry_for_a_repository_is_not_for_the_registry(tmp_path: Path) -> None:
    file = written(tmp_path / "f", auths={"quay.io/team": entry("team")})
    assert found(file, "quay.io", "other/app") is None
    assert found(file, "example.com", "team") is None


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("https://index.docker.io/v1/", HUB),
        ("docker.io", HUB),
        ("docker.io/library", HUB),
        ("index.docker.io/v1/", HUB),
        ("https://quay.io/v2/", "quay.io"),
        ("quay.io:443", "quay.io"),
        ("QUAY.io", "quay.io"),
        ("http://127.0.0.1:5000", "127.0.0.1:5000"),
    ],
)
def test_the_ways_to_write_a_registry(tmp_path: Path, key: str, registry: str) -> None:
    file = written(tmp_path / "f", auths={key: entry("u")})
    assert found(file, registry, "library/redis") == "u"
    assert found(file, "elsewhere.example", "library/redis") is None


def test_kinds_of_entries(tmp_path: Path) -> None:
    auths = {
        "a": {"identitytoken": "id", "auth": "ignored"},
        "b": {"registrytoken": "rt"},
        "c": {"username": "u", "password": "p"},
        "d": {},
        "e": {"auth": base64.b64encode(b"u:a:b\0").decode()},
    }
    file = str(written(tmp_path / "f", auths=auths))
    logins = Logins("", file)
    assert logins.find("a") == Login("", "id", file)
    assert logins.find("b") == Login("", "", file, "rt")
    assert logins.find("c") == Login("u", "p", file)
    assert logins.find("d") is None
    assert logins.find("e") == Login("u", "a:b", file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"auths": []', "not JSON: expecting ',' delimiter at line 1, column 13"),
        ("", "it is empty, which is not JSON"),
        ("\udcff", "not JSON: byte 0xff, which is not UTF-8, at line 1, column 1"),
        ('{"auths": ' + "1" * 5000, "not JSON: a number of too many digits at line 1, column 11"),
        ("[" * 100_000, "$: expected at most 64 levels of nesting, found more"),
        ('{"auths": 5}', "auths: expected an object, found a number"),
        ('{"auths": []}', "auths: expected an object, found a list"),
        ("[]", "expected an object, found a list"),
        ("null", "expected an object, found null"),
        ('{"auths": {"r": "x"}}', "auths: r: expected an object, found text"),
        ('{"auths": {"https://r": {"auth": 5}}}', "auths: https://r: auth: expected text, found a number"),
        ('{"auths": {"r": {"auth": "%%"}}}', "auths: r: auth: expected USER:PASSWORD in base64"),
        ('{"auths": {"r": {"auth": "dQ=="}}}', "auths: r: auth: expected USER:PASSWORD in base64"),
        ('{"credsStore": 5}', "credsStore: expected text, found a number"),
        ('{"credHelpers": {"r": []}}', "credHelpers: r: expected text, found a list"),
        ('{"credHelpers": ["r"]}', "credHelpers: expected an object, found a list"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "f").write_text(content, errors="surrogateescape")
    with pytest.raises(FetchUnauthorizedError) as caught:
        found(tmp_path / "f", "r")
    assert caught.value.message == f"{tmp_path}/f: {said}"


def test_what_is_null_or_for_others_is_no_mistake(tmp_path: Path) -> None:
    file = written(tmp_path / "f", auths={"q": "x", "r": None}, credHelpers=None, credsStore=None)
    assert found(written(tmp_path / "g", auths=None), "r") is None
    assert found(file, "r") is None
    assert found(file, "s") is None


# --- which file ---


def test_the_usual_files_in_podmans_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("DOCKER_CONFIG", "XDG_CONFIG_HOME", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)

    def user() -> str | None:
        login = Logins("").find("quay.io", "app")
        return None if login is None else login.user

    assert user() is None
    written(tmp_path / "home/.docker/config.json", auths={"quay.io": entry("docker")})
    assert user() == "docker"
    written(tmp_path / "home/.config/containers/auth.json", auths={"quay.io": entry("config")})
    assert user() == "config"
    written(tmp_path / "run/containers/auth.json", auths={"quay.io": entry("run")})
    assert user() == "run"
    written(tmp_path / "run/containers/auth.json", auths={"quay.io/team": entry("run")})
    assert user() == "config", "a file that has nothing for it hands on to the next"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(written(tmp_path / "given", auths={"quay.io": entry("given")})))
    assert user() == "given"


def test_where_the_environment_says() -> None:
    assert usual_files({"HOME": "/h", "XDG_CONFIG_HOME": "/c", "DOCKER_CONFIG": "/d"})[1:] == (
        "/c/containers/auth.json",
        "/d/config.json",
    )
    assert usual_files({"HOME": "/h"})[0].startswith("/run/containers/")


def test_auth_d_counts_before_them(tmp_path: Path) -> None:
    file = written(tmp_path / "f", auths={"quay.io": entry("docker")})
    ours = written(tmp_path / "auth.d/a.json", hosts=["docker.io"], type="bearer", token="t")
    ours.chmod(0o600)
    basic = written(tmp_path / "auth.d/b.json", hosts=["quay.io"], type="basic", user="ours", password="p")
    basic.chmod(0o600)
    logins = Logins(str(tmp_path / "auth.d"), str(file))
    assert logins.find("quay.io") == Login("ours", "p", f"{tmp_path}/auth.d")
    assert logins.find(HUB) == Login("", "", f"{tmp_path}/auth.d", "t")


def test_files_without_an_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(FetchUnauthorizedError, match=f"^{path}: cannot be read: it is not a regular file$"):
            found(path, "quay.io")


# --- helpers ---


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a credential helper of that name, a shell script."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        path = tmp_path / "bin" / f"docker-credential-{name}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nread server\n{script}\n")
        path.chmod(0o755)

    return make


def answer(user: str, secret: str) -> str:
    return "echo '" + json.dumps({"ServerURL": "x", "Username": user, "Secret": secret}) + "'"


def test_a_helper_is_asked_for_its_registry_alone(tmp_path: Path, helper: Any) -> None:
    helper("one", f'[ "$1 $server" = "get quay.io" ] || exit 7\n{answer("u", "s")}')
    file = written(tmp_path / "f", credHelpers={"quay.io": "one"}, auths={"other.example": entry("plain")})
    logins = Logins("", str(file))
    assert logins.find("quay.io", "team/app") == Login("u", "s", "docker-credential-one")
    assert logins.find("other.example") == Login("plain", "p", str(file))


def test_a_helper_with_an_identity_token(tmp_path: Path, helper: Any) -> None:
    helper("one", answer("<token>", "id"))
    file = written(tmp_path / "f", credHelpers={"quay.io": "one"})
    assert Logins("", str(file)).find("quay.io") == Login("", "id", "docker-credential-one")


def test_a_store_that_knows_nothing_hands_on(tmp_path: Path, helper: Any) -> None:
    helper(
        "all",
        f"case $server in quay.io) {answer('u', 's')};; *) echo credentials not found; exit 1;; esac",
    )
    file = written(tmp_path / "f", credsStore="all", auths={"plain.example": entry("plain"), "quay.io": {}})
    logins = Logins("", str(file))
    assert logins.find("quay.io") == Login("u", "s", "docker-credential-all")
    assert logins.find("plain.example") == Login("plain", "p", str(file))
    assert logins.find("nothing.example") is None


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'it broke\nbadly' >&2; exit 1", "failed: it broke badly"),
        ("exit 3", "failed: exit status 3"),
        ("kill -9 $$", "failed: exit status -9"),
        ("echo garbage", "its answer is malformed"),
        ("printf '\\377\\000'", "its answer is malformed"),
        ("echo '[]'", "its answer is malformed"),
        ('echo \'{"Username": 5, "Secret": "x"}\'', "its answer is malformed"),
        ('echo \'{"Username": "u"}\'', "its answer is malformed"),
    ],
)
def test_helpers_that_fail(tmp_path: Path, helper: Any, script: str, text: str) -> None:
    helper("bad", script)
    file = written(tmp_path / "f", credHelpers={"quay.io": "bad"})
    with pytest.raises(FetchUnauthorizedError) as caught:
        found(file, "quay.io")
    assert caught.value.message == f"credential helper docker-credential-bad: {text}"
    assert caught.value.hint == f"it is named in {file}"


def test_a_helper_that_hangs_is_ended_with_all_it_started(tmp_path: Path, helper: Any) -> None:
    helper("slow", f"(sleep 30; echo late > {tmp_path}/late) & echo $! > {tmp_path}/pid; wait")
    file = written(tmp_path / "f", credsStore="slow")
    begun = time.monotonic()
    with pytest.raises(FetchUnauthorizedError, match="docker-credential-slow: no answer in"):
        Logins("", str(file), helper_timeout=0.5).find("quay.io")
    assert time.monotonic() - begun < 5
    child = (tmp_path / "pid").read_text().strip()
    until(lambda: not alive(child), "the end of what the helper started")


@pytest.mark.parametrize("script", ["exec yes", "exec yes >&2", f"{answer('u', 's')}; exec cat /dev/zero"])
def test_a_helper_that_writes_without_end_is_stopped(tmp_path: Path, helper: Any, script: str) -> None:
    helper("endless", f"echo $$ > {tmp_path}/pid\n{script}")
    file = written(tmp_path / "f", credsStore="endless")
    begun = time.monotonic()
    with pytest.raises(FetchUnauthorizedError, match="endless: its answer is longer than 1048576 bytes"):
        Logins("", str(file)).find("quay.io")
    assert time.monotonic() - begun < 10
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_what_a_helper_leaves_behind_does_not_hold_anybody_up(tmp_path: Path, helper: Any) -> None:
    """It has answered and ended; something that it started has its output open."""
    helper("leaving", f"sleep 30 & echo $! > {tmp_path}/pid\n{answer('u', 's')}")
    file = written(tmp_path / "f", credsStore="leaving")
    with pytest.raises(FetchUnauthorizedError, match="no answer in"):
        Logins("", str(file), helper_timeout=0.5).find("quay.io")
    child = (tmp_path / "pid").read_text().strip()
    until(lambda: not alive(child), "the end of what the helper started")


@pytest.mark.parametrize("name", ["../evil", "a b", ""])
def test_names_of_helpers(tmp_path: Path, name: str) -> None:
    with pytest.raises(FetchUnauthorizedError, match="not a name"):
        found(written(tmp_path / "f", credHelpers={"quay.io": name}), "quay.io")


def test_helpers_that_are_not_there(tmp_path: Path, helper: Any) -> None:
    file = written(tmp_path / "f", credHelpers={"quay.io": "kurma-has-none"})
    with pytest.raises(FetchUnauthorizedError, match="docker-credential-kurma-has-none: it is not installed"):
        found(file, "quay.io")
    helper("odd", "")
    (tmp_path / "bin/docker-credential-odd").write_bytes(b"\x7fELF no program")
    with pytest.raises(FetchUnauthorizedError, match="docker-credential-odd: it cannot be executed: Exec format"):
        found(written(tmp_path / "g", credHelpers={"quay.io": "odd"}), "quay.io")


# --- logging in ---

CATALOG = "/v2/_catalog"
UPLOAD = "/v2/kurma-login/blobs/uploads/00000000-0000-0000-0000-000000000000"


def log_in(tmp_path: Path, server: WebServer, secret: str) -> list[str]:
    """Logs in at a registry whose ``/v2/`` everyone may read. :returns: the notes about credentials."""
    server.pages["/v2/"] = server.pages.get("/v2/", Page(b"{}"))
    notes: list[str] = []
    context = driver_context(tmp_path, note=notes.append)
    given = entry("user", secret)
    request = FetchRequest("linux", "amd64")
    file = DockerFetcher(context).log_in(f"docker://{server.host}", "user", secret, request)
    kept = Credentials(context.auth_dir).header(server.host)
    assert (os.path.dirname(file), kept) == (context.auth_dir, f"Basic {given['auth']}")
    return [note for note in notes if "credentials" in note]


def guarded(server: WebServer, path: str, scheme: str) -> None:
    """Has the registry ask for the user's password at that path, by ``basic`` or ``bearer``."""
    ours = f"Basic {entry('user', 'secret')['auth']}"
    if scheme == "basic":
        server.pages[path] = Page(authorization=ours, headers={"WWW-Authenticate": 'Basic realm="r"'})
        return
    challenge = f'Bearer realm="{server.url("/token")}",service="s",scope="registry:catalog:*"'
    server.pages[path] = Page(authorization="Bearer others", headers={"WWW-Authenticate": challenge})
    server.pages["/token"] = Page(b'{"token": "t"}', authorization=ours)


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
@pytest.mark.parametrize("path", [CATALOG, UPLOAD])
def test_a_registry_that_everyone_may_read_checks_credentials_elsewhere(
    tmp_path: Path, server: WebServer, path: str, scheme: str
) -> None:
    guarded(server, path, scheme)
    with pytest.raises(FetchUnauthorizedError, match="does not accept the credentials from the command line"):
        log_in(tmp_path, server, "wrong")
    assert not list(tmp_path.glob("auth.d/*"))
    assert log_in(tmp_path, server, "secret") == []
    asked = [seen.path for seen in server.requests("/token")]
    assert asked == (["/token?service=s"] * 2 if scheme == "bearer" else []), "no rights are asked for"


def test_a_registry_that_looks_at_credentials_only_if_they_are_sent(tmp_path: Path, server: WebServer) -> None:
    server.pages["/v2/"] = Page(statuses=[200, 401])
    with pytest.raises(FetchUnauthorizedError, match="does not accept the credentials from the command line"):
        log_in(tmp_path, server, "wrong")


@pytest.mark.parametrize("answers", [(200, 200), (404, 405), (500, 503), (403, 403)])
def test_a_registry_that_asks_for_no_credentials_has_not_checked_them(
    tmp_path: Path, server: WebServer, answers: tuple[int, int]
) -> None:
    for path, status in zip((CATALOG, UPLOAD), answers, strict=True):
        server.pages[path] = Page(statuses=[status])
    (note,) = log_in(tmp_path, server, "anything")
    assert note == (
        f"registry {server.host} asks for no credentials: those of user are kept, but were not checked"
    )
