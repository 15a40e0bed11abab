"""User namespaces as people ask for them, and see them, at the command line and at a terminal (H8, H9)."""

import json
import os

import pytest

from tests.integration.cli.person import Person
from tests.kit.command import KURMA

pytestmark = pytest.mark.root


def test_run_and_show(kurma, tmp_path):
    (tmp_path / "given").write_text("x")
    words = ("--net", "none", "--userns", "700000:65536", "--name", "mapped", "-v", f"{tmp_path}:/vol:idmap")
    script = "cat /proc/self/uid_map; stat -c %u:%g /vol/given; touch /vol/made"
    output = kurma.out("run", *words, "--exec", "/bin/sh", kurma.image, "--", "-c", script)
    assert output.split() == ["0", "700000", "65536", "0:0"]
    assert (os.stat(tmp_path / "made").st_uid, os.stat(tmp_path / "made").st_gid) == (0, 0)
    page = kurma.out("show", "mapped")
    assert "700000:65536 (ids 0 to 65535 are the host's 700000 to 765535)" in page
    assert "note: user namespace: the pod's root is user 700000 of the host" in page
    shown = json.loads(kurma.out("show", "mapped", "--format", "json"))
    assert shown["userNamespace"] == {"first": 700000, "count": 65536}
    kurma.out("prepare", "--name", "plain", "--net", "none", kurma.image)
    assert "user namespace" not in kurma.out("show", "plain")
    done = kurma("run", "--userns", "765535:1", kurma.image)
    assert done.returncode == 125
    assert "has the ids 700000:65536 of the host" in done.stderr.splitlines()[0]
    done = kurma("run", "--userns", "65536", kurma.image)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("--userns: malformed '65536'")
    done = kurma("run", "--annotation", "kurma.io/userns=yes", kurma.image)
    assert done.returncode == 125
    assert "annotation kurma.io/userns: expected none, auto, or UID:COUNT" in done.stderr


def test_a_terminal_in_it(kurma):
    words = ("--name", "tty", "--net", "none", "--userns", "auto", "--exec", "/bin/sh", kurma.image)
    process = kurma.popen("run", *words, "--", "-c", "echo up; exec sleep 1000")
    assert process.stdout.readline() == "up\n"
    person = Person((*KURMA, "enter", "-it", "tty", "--", "sh"), kurma.environment)
    try:
        person.wait_raw()
        person.expect("# ")
        person.type("tty; stat -c %a:%u:%g $(tty); echo again > /dev/tty; sh -c 'id -u; exec sleep 1000'\n")
        person.expect("/dev/pts/")
        person.expect("620:0:5\r\n")
        person.expect("again\r\n")
        person.expect("0\r\n")
        person.type("\x03")
        person.type("exit 7\n")
        assert person.wait() == 7
    finally:
        person.close()
        kurma("rm", "--force", "tty")
        process.communicate()


def test_a_plain_users_terminal_in_it(kurma):
    words = ("--name", "tty", "--net", "none", "--userns", "auto", "--exec", "/bin/sh", kurma.image)
    process = kurma.popen("run", *words, "--", "-c", "echo up; exec sleep 1000")
    assert process.stdout.readline() == "up\n"
    person = Person((*KURMA, "enter", "-it", "--user", "alice", "tty", "--", "sh"), kurma.environment)
    try:
        person.wait_raw()
        person.type("stat -c %a:%u:%g $(tty); echo mine > $(tty); id -u\n")
        person.expect("620:1000:5\r\n")
        person.expect("mine\r\n")
        person.expect("1000\r\n")
    finally:
        person.close()
        kurma("rm", "--force", "tty")
        process.communicate()


def test_an_apps_own_terminal_in_it(kurma):
    words = (
        "--name",
        "tty",
        "--net",
        "none",
        "--userns",
        "auto",
        "--user",
        "alice",
        "--exec",
        "/bin/sh",
        kurma.image,
    )
    person = Person((*KURMA, "run", "-i", "-t", *words), kurma.environment)
    try:
        person.wait_raw()
        person.type("stat -c %a:%u:%g $(tty); stat -c %u /dev/console; echo mine > /dev/tty; cat\n")
        person.expect("620:1000:5\r\n1000\r\nmine\r\n")
        person.type("here\n")
        person.expect("here\r\nhere\r\n")  # what Ctrl-C is to end is in the foreground now
        person.type("\x03")
        person.expect("^C\r\n~ $ ")  # what is typed before that, the shell may drop
        person.type("exit 7\n")
        assert person.wait() == 7
    finally:
        person.close()
        kurma("rm", "--force", "tty")
