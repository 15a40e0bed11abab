"""The command line of the ``run`` entrypoint, argument by argument, version by version (Z4)."""

import pytest
from kurma_stager_rkt.run_arguments import RunWishes, run_arguments
from kurma_stager_rkt.stage1_image import ENTRYPOINTS, Stage1

from kurma_core.errors import StagerError
from kurma_core.value import replace

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"
PLAIN = RunWishes(UUID, 1, ("none",), local_config="/etc/rkt")
#: Everything that can be wished for.
ALL = RunWishes(
    UUID,
    1,
    ("front", "back"),
    debug=True,
    interactive=True,
    private_users=(1879048192, 65536),
    local_config="/pods/run/UUID/local-config",
    hostname="db",
    resolv="stage0",
    hosts="stage0",
    lifted=("seccomp", "capabilities", "paths"),
    ipc="parent",
)


def image(version, entrypoints=ENTRYPOINTS):
    return Stage1("example.com/stage1", version, {name: f"/ex/{name}" for name in entrypoints})


def told(version, wishes, **more):
    notes = []
    return list(run_arguments(image(version, **more), wishes, notes.append)), notes


OF_1 = [
    "--debug",
    "--net=front,back",
    "--interactive",
    "--private-users=1879048192:65536",
    "--local-config=/pods/run/UUID/local-config",
]
OF_3 = ["--disable-capabilities-restriction", "--disable-paths", "--disable-seccomp"]
DNS = "--dns-conf-mode=resolv=stage0,hosts=stage0"


@pytest.mark.parametrize(
    ("version", "later", "left_out"),
    [
        (1, [], ["the hostname db", "resolv.conf", "of capabilities", "of paths", "of seccomp", "IPC namespace"]),
        (2, ["--hostname=db"], ["resolv.conf", "of capabilities", "of paths", "of seccomp", "IPC namespace"]),
        (3, ["--hostname=db", *OF_3], ["resolv.conf", "IPC namespace"]),
        (4, ["--hostname=db", DNS, *OF_3], ["IPC namespace"]),
        (5, ["--hostname=db", DNS, *OF_3, "--mutable"], ["IPC namespace"]),
        (6, ["--hostname=db", DNS, *OF_3, "--mutable", "--ipc=parent"], []),
    ],
)
def test_all_of_a_version(version, later, left_out):
    """In the interface's order, and no more than the version knows; what is left out is told, a line each."""
    found, notes = told(version, replace(ALL, mutable=version >= 5))
    assert found == [*OF_1, *later, UUID]
    assert [word in note for word, note in zip(left_out, notes, strict=True)] == [True] * len(left_out)
    assert all(f"interface version {version}" in note for note in notes)


@pytest.mark.parametrize("version", range(1, 7))
def test_nothing_is_wished_for(version):
    """Neither a hostname nor name servers nor an IPC namespace: stage1-fly would fail for most images."""
    assert told(version, PLAIN) == (["--net=none", "--local-config=/etc/rkt", UUID], [])


def test_one_of_the_two_files():
    assert "--dns-conf-mode=resolv=default,hosts=stage0" in told(4, replace(PLAIN, hosts="stage0"))[0]
    (note,) = told(3, replace(PLAIN, resolv="stage0"))[1]
    assert "is not told where resolv.conf and hosts come from" in note


def test_the_hosts_network():
    assert told(1, replace(PLAIN, networks=()))[0][0] == "--net=host"


@pytest.mark.parametrize("version", [1, 6])
def test_standard_input_of_several_apps(version):
    with pytest.raises(StagerError, match=r"only in a pod of one app, and this one has 2"):
        told(version, replace(PLAIN, apps=2, interactive=True))
    assert "--interactive" not in told(version, replace(PLAIN, apps=2))[0]


def test_the_metadata_service_is_where_no_stage1_looks():
    found, notes = told(6, replace(PLAIN, metadata=True))
    assert not any(word.startswith("--mds-token") for word in found)
    assert [note for note in notes if "AC_METADATA_URL" in note] == notes != []


@pytest.mark.parametrize("version", [1, 5])
def test_a_wall_that_cannot_be_asked_for(version):
    """Without it, apps may share the host's IPC namespace."""
    with pytest.raises(StagerError, match=f"keeps to interface version {version}, and that came with 6"):
        told(version, replace(PLAIN, ipc="private"))
    assert told(6, replace(PLAIN, ipc="private"))[0][-2] == "--ipc=private"


@pytest.mark.parametrize(
    ("version", "entrypoints"), [(4, ENTRYPOINTS), (5, ("run",)), (6, ("run", "app/add", "app/start", "app/stop"))]
)
def test_apps_that_could_never_come(version, entrypoints):
    with pytest.raises(StagerError, match="could never get any"):
        told(version, replace(PLAIN, mutable=True), entrypoints=entrypoints)
