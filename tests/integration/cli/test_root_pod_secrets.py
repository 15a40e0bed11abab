"""Secrets in pods: files and variables of apps. A value is only in the store, in the pod's memory and in the
environment of the app's own processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kurma_core.errors import StagerError
from kurma_core.secret_store import SecretStore
from tests.integration.cli.test_root_secrets import files_with
from tests.kit.command import one_line
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

VALUE = "hunter2-of-the-pods"
#: The image's own command prints and ends.
SHELL = ("--exec", "/bin/sh")
KEY = "-----BEGIN KEY-----\nhunter3\n"


@pytest.fixture
def secrets(kurma: Any) -> Iterator[Any]:
    """The command, with the secrets ``pass`` and ``key``."""
    assert kurma("secret", "create", "pass", "-", input=VALUE).returncode == 0
    assert kurma("secret", "create", "key", "-", input=KEY).returncode == 0
    yield kurma
    for line in kurma.out("secret", "list", "--no-legend").splitlines():
        kurma.out("secret", "rm", "--force", line.split()[0])


def processes_with(value: str, file: str) -> set[int]:
    """PIDs of the processes whose file in /proc contains the value."""
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{pid}/{file}").read_bytes()
        except OSError:
            continue
        if value.encode() in text:
            found.add(int(pid))
    return found


def mounts_of(kurma: Any, pod: str) -> list[str]:
    """The places of secrets in the mount namespace of the pod's stager."""
    pid = kurma.pod(pod)["stagerPid"]
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith("/secrets/")]


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_files_have_owner_mode_and_value(secrets: Any, userns: str) -> None:
    script = (
        "cat /run/secrets/pass; echo; cat /etc/app/tls.key; stat -c '%a %u %g' /run/secrets/pass /etc/app/tls.key "
        "/run/secrets/sub/pass; echo x >>/run/secrets/pass || echo read-only; ls -A /run/secrets; "
        "grep -c ' /run/secrets/pass ro,nosuid,nodev,noexec' /proc/self/mountinfo"
    )
    options = (
        *("--userns", userns, "--secret", "pass"),
        *("--secret", "key,target=/etc/app/tls.key,uid=70,gid=71,mode=0440"),
        *("--secret", "pass,type=mount,target=sub/pass,mode=400"),
    )
    done = secrets.run(script, *SHELL, *options)
    assert done.stdout == f"{VALUE}\n{KEY}444 0 0\n440 70 71\n400 0 0\nread-only\npass\nsub\n1\n", done.stderr


def test_a_user_reads_its_own_and_no_other(secrets: Any) -> None:
    script = "cat /run/secrets/mine; cat /run/secrets/roots || echo refused"
    mine = ("--secret", "key,target=mine,uid=1000,mode=0400", "--secret", "key,target=roots,mode=0400")
    done = secrets.run(script, *SHELL, "--user", "1000:1000", "--userns", "auto", *mine)
    assert done.stdout == f"{KEY}refused\n", done.stderr


def test_variables(secrets: Any) -> None:
    assert secrets("secret", "create", "raw", "-", input="a\nb").returncode == 0
    script = "env | grep -A1 -E '^(PGPASS|pass|raw)='"
    options = ("--secret", "pass,type=env", "--secret", "pass,type=env,target=PGPASS", "--secret", "raw,type=env")
    done = secrets.run(script, *SHELL, *options, "--env", "PGPASS=other")
    lines = {f"pass={VALUE}", f"PGPASS={VALUE}", "raw=a", "b"}
    assert lines <= set(done.stdout.splitlines()), done.stdout + done.stderr


def test_no_trace_of_a_value(secrets: Any, sleeping: Callable[..., Any]) -> None:
    """While the pod runs, once it has ended, and after its removal."""
    kurma = secrets
    sleeping("web", "--secret", "pass", "--secret", "pass,type=env,target=PW")
    store = {str(kurma.state / "secrets/pass")}
    assert files_with(VALUE, kurma.directory) == store
    assert processes_with(VALUE, "cmdline") == set()
    (app,) = kurma.pod("web")["apps"].values()
    assert processes_with(VALUE, "environ") == {app["pid"]}
    mounts = mounts_of(kurma, "web")
    assert len(mounts) == 1
    assert Path(f"/proc/{kurma.pod('web')['stagerPid']}/root{mounts[0]}").stat().st_mode & 0o777 == 0o700
    assert " /secrets/" not in Path("/proc/self/mountinfo").read_text()
    for words in (
        ("show", "web"),
        ("show", "web", "--format", "json"),
        ("inspect", "web"),
        ("cat-manifest", "web"),
        ("list", "--format", "json"),
        ("events", "--no-follow"),
        ("secret", "show", "pass"),
        ("secret", "inspect", "pass", "--format", "yaml"),
        ("logs", "web"),
    ):
        assert VALUE not in kurma.out(*words), words
    assert kurma.out("exec", "web", "cat", "/run/secrets/pass") == VALUE
    shown = ("/bin/sh", "-c", 'echo "$PW"')
    assert kurma.out("exec", "web", *shown) == f"{VALUE}\n"
    assert kurma.out("exec", "-e", "PW=own", "web", *shown) == "own\n"
    assert kurma.json("secret", "show", "pass")["pods"] == ["web"]
    kurma.out("stop", "web")
    assert files_with(VALUE, kurma.directory) == store
    assert processes_with(VALUE, "environ") == set()
    assert processes_with("/secrets/", "mountinfo") == set()
    kurma.out("rm", "web")
    assert files_with(VALUE, kurma.directory) == store
    assert kurma.json("secret", "show", "pass")["pods"] == []


def test_a_pod_file(secrets: Any, tmp_path: Path) -> None:
    kurma = secrets
    given = [
        {"name": "pass"},
        {"name": "key", "target": "/srv/key", "uid": 3, "gid": 4, "mode": "0400"},
        {"name": "pass", "environment": "PW"},
    ]
    script = 'printf "$PW "; cat /run/secrets/pass; stat -c " %a %u %g" /srv/key'
    app = {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0"}
    pod = {"apps": [{"name": "main", "image": kurma.image, "app": app, "secrets": given}], "networks": []}
    (tmp_path / "pod.yml").write_text(yaml.safe_dump(pod))
    done = kurma("run", "--rm", "--pod", str(tmp_path / "pod.yml"))
    assert done.stdout == f"{VALUE} {VALUE} 400 3 4\n", done.stderr
    uuid = kurma.out("prepare", "--pod", str(tmp_path / "pod.yml")).strip()
    (app,) = yaml.safe_load(kurma.out("cat-manifest", uuid))["apps"]
    assert app["secrets"] == [{**given[0], "target": "/run/secrets/pass"}, *given[1:]]
    for wrong, said in (
        ({"name": "a/b"}, "apps[0].secrets[0].name"),
        ({"name": "pass", "target": "/a/../b"}, "apps[0].secrets[0].target"),
        ({"name": "pass", "environment": "A=B"}, "apps[0].secrets[0].environment"),
        ({"name": "pass", "environment": "A", "uid": 1}, "apps[0].secrets[0].uid"),
        ({"name": "pass", "mode": "999"}, "apps[0].secrets[0].mode"),
        ({"name": "pass", "value": "x"}, "apps[0].secrets[0]"),
    ):
        pod["apps"][0]["secrets"] = [wrong]
        (tmp_path / "pod.yml").write_text(yaml.safe_dump(pod))
        one_line(kurma("prepare", "--pod", str(tmp_path / "pod.yml")), said)


def test_options_that_are_refused(secrets: Any) -> None:
    for text, said in (
        ("pass,nonsense=1", "malformed 'nonsense=1'"),
        ("pass,type=file", "type must be mount or env"),
        ("pass,type=env,uid=1", "uid: expected no uid beside environment"),
        ("pass,uid=-1", "uid must be a number"),
        ("../pass", "name: expected a secret's name"),
        ("pass,target=/", "target: expected the path of a file"),
    ):
        one_line(secrets("prepare", "--secret", text, secrets.image), "--secret", said, code=2)
    one_line(secrets("prepare", "--secret", "none", secrets.image), "no secret none", hint="secret create none")
    assert secrets("secret", "create", "binary", "-", input="a\0b").returncode == 0
    one_line(secrets("prepare", "--secret", "binary,type=env", secrets.image), "NUL byte", hint="as a file")
    assert secrets("secret", "create", "large", "-", input="x" * (1 << 17)).returncode == 0
    one_line(secrets("prepare", "--secret", "large,type=env", secrets.image), "too large for a variable")
    assert secrets.run("wc -c </run/secrets/large", *SHELL, "--secret", "large").stdout == f"{1 << 17}\n"


def test_a_secret_in_use_is_kept(secrets: Any) -> None:
    kurma = secrets
    kurma.out("prepare", "--name", "web", "--net", "none", "--secret", "pass", kurma.image)
    refused = kurma("secret", "rm", "pass")
    one_line(refused, "cannot remove secret pass: pods name it: web", hint="--force")
    assert kurma.out("secret", "ls", "--no-legend").splitlines()[-1].split()[-1] == "web"
    kurma.out("secret", "rm", "--force", "pass")
    before = processes_with("/secrets/", "mountinfo")
    failed = kurma("run-prepared", "web")
    one_line(failed, "no secret pass", hint="kurma secret create pass FILE")
    assert kurma.pod("web")["state"] == "errored"
    assert not os.path.exists(kurma.state / "pods" / kurma.pod("web")["uuid"] / "stager/manifest")
    assert processes_with("/secrets/", "mountinfo") == before


def test_a_later_start_gets_the_new_value(secrets: Any) -> None:
    kurma = secrets
    options = ("--name", "web", "--net", "none", "--secret", "pass", *SHELL)
    assert kurma.out("run", *options, kurma.image, "--", "-c", "cat /run/secrets/pass") == VALUE
    assert kurma("secret", "create", "--replace", "pass", "-", input="new").returncode == 0
    assert kurma.out("start", "web") == "new"


def test_an_app_that_is_added(secrets: Any, sleeping: Callable[..., Any]) -> None:
    """Its secrets go with it, and another app does not see them."""
    kurma = secrets
    sleeping("web")
    assert mounts_of(kurma, "web") == []
    words = ("--name", "extra", "--secret", "pass", "--secret", "key,type=env,target=KEY")
    kurma.out("app", "add", "web", *words, *SHELL, kurma.image, "--", "-c", "sleep 999")
    assert mounts_of(kurma, "web") == ["/secrets/extra"]
    assert files_with(VALUE, kurma.directory) == {str(kurma.state / "secrets/pass")}
    kurma.out("app", "start", "web", "extra")
    assert kurma.out("exec", "web/extra", "cat", "/run/secrets/pass") == VALUE
    assert kurma.out("exec", "web/extra", "/bin/sh", "-c", 'echo "$KEY"') == KEY + "\n"
    assert kurma("exec", "web/busybox", "cat", "/run/secrets/pass").returncode == 1
    kurma.out("app", "rm", "--force", "web", "extra")
    assert mounts_of(kurma, "web") == []
    assert kurma.json("secret", "show", "pass")["pods"] == []


def test_a_stager_that_does_not_know_secrets_is_refused(foreign: Any) -> None:
    house = foreign("exit 0")
    store = SecretStore(house.state)
    store.write("of-house", VALUE.encode())
    try:
        app = {"app": shell("true"), "secrets": [{"name": "of-house"}]}
        with pytest.raises(StagerError, match=r"annotation kurma\.io/stager/secrets"):
            house.run({"main": app})
    finally:
        store.remove("of-house")


@pytest.mark.full
@pytest.mark.parametrize("moment", ["state.json", "stager/manifest", "pod/status.json"])
def test_killed_while_it_starts(secrets: Any, moment: str) -> None:
    """Nothing is left: no mount, no file with the value."""
    kurma = secrets
    words = ("--name", "web", "--net", "none", "--secret", "pass", "--secret", "pass,type=env,target=PW")
    process = kurma.popen("run", *words, *SHELL, kurma.image, "--", "-c", "sleep 999")
    pods = kurma.state / "pods"
    until(lambda: [path for path in pods.glob(f"*-*/{moment}") if path.stat().st_size], moment)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kurma("rm", "--force", "web")  # it is gone if the command died before the pod was there
    kurma.out("gc")
    assert processes_with("/secrets/", "mountinfo") == set()
    assert files_with(VALUE, kurma.directory) == {str(kurma.state / "secrets/pass")}
