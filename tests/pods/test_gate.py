"""The gate: whom a grant is for, who is asked, and what a refusal says (X6)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kurma_isolators_linux.driver import DEFAULTS, EXCLUSIVE, GATED, ISOLATORS, LinuxIsolators

from kurma_core import config
from kurma_core.api.pods import AppOverrides, PodRequest
from kurma_core.appc.image import Isolator
from kurma_core.appc.template import PodTemplate
from kurma_core.config import GrantConfig
from kurma_core.errors import ConfigError, IsolatorError, PowerError, UsageError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.images.trust_policy import Vouchers
from kurma_core.isolation import IsolatorPlugin
from kurma_core.models.isolator import RLIMITS, HostMount, IsolatorPlan
from kurma_core.pods.prepare import grants, isolators
from kurma_core.pods.prepare.app_settings import with_isolators
from kurma_core.pods.record.document import Need, PodDocument
from kurma_core.value import replace

ALICE, MALLORY = "A" * 40, "1" * 39 + "E"
ID = "sha512-" + "0" * 128
NAMESPACES = "os/linux/namespaces"
PRIVILEGED = "os/linux/privileged"
API = "host/api-access"
PLUGINS = (IsolatorPlugin(ISOLATORS, LinuxIsolators, DEFAULTS, EXCLUSIVE, GATED),)
HOST = IsolatorHost({"pids": 2, "cpu": 2}, 2)
RETAIN, REMOVE = "os/linux/capabilities-retain-set", "os/linux/capabilities-remove-set"
CALLS = "os/linux/seccomp-retain-set"
PROFILE = "kurma.io/seccomp-profile"


def image(name: str = "example.com/app", *, signers: tuple[str, ...] = (ALICE,), **more: Any) -> Vouchers:
    more = {"lapsed": {}, "digests": frozenset({more.get("id", ID)}), **more}
    return Vouchers(**{"id": ID, "name": name, "signers": signers, **more})


def grant(**keys: Any) -> GrantConfig:
    return GrantConfig(**{"images": (), "signers": (), "digests": (), "isolators": (PRIVILEGED,), **keys})


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("example.com/app", True),
        ("example.com/app/web", True),
        ("example.com/apple", False),
        ("example.com/app-2", False),
        ("example.com", False),
        ("other.example.com/app", False),
    ],
)
def test_a_name_begins_where_its_parts_do(name: str, allowed: bool) -> None:
    assert grants.admits(grant(images=("example.com/app",)), image(name)) is allowed


def test_a_name_is_nothing_without_a_signature_that_counts() -> None:
    mine = grant(images=("example.com/app",), signers=(ALICE,))
    assert grants.admits(mine, image())
    assert grants.admits(mine, image(signers=(MALLORY, ALICE)))
    assert not grants.admits(mine, image(signers=(MALLORY,)))
    assert not grants.admits(mine, image(signers=(), lapsed={ALICE: "revoked"}))
    assert not grants.admits(replace(mine, signers=()), image(signers=()))
    assert grants.admits(replace(mine, signers=()), image(signers=(MALLORY,)))


def test_a_digest_is_the_whole_one_of_that_image() -> None:
    exact = grant(digests=(ID,))
    assert grants.admits(exact, image("anything", signers=()))
    assert not grants.admits(exact, image(signers=(), id="sha512-" + "1" * 128))


@pytest.mark.parametrize("mine", [grant(images=("example.com/app",)), grant(digests=(ID,))])
def test_what_an_image_is_made_of_is_vouched_for_too(mine: GrantConfig) -> None:
    part = image("example.com/base", id="sha512-" + "2" * 128)
    assert grants.admits(mine, image(parts=(part,)))
    loose = replace(part, signers=())
    assert not grants.admits(mine, image(parts=(loose,)))
    both = grant(digests=(ID, loose.id))
    assert grants.admits(both, image(signers=(), parts=(loose,)))


# --- who needs what ---


def request(apps: dict[str, Any], **options: Any) -> PodRequest:
    document = {"apps": [{"name": name, "image": "x", **app} for name, app in apps.items()]}
    return PodRequest(PodTemplate.parse(document), **options)


def all_needs(
    wanted: PodRequest,
    apps: dict[str, dict[str, Any]],
    pod: dict[str, Any],
    shared: str = "",
    *,
    host: IsolatorHost = HOST,
    **more: Any,
) -> grants.Needs:
    isolators = {app: tuple(Isolator(*pair) for pair in some.items()) for app, some in apps.items()}
    manifest = replace(wanted.template.pod, isolators=tuple(Isolator(*pair) for pair in pod.items()))
    return grants.needs(wanted, manifest, isolators, PLUGINS, frozenset(shared.split()), host, **more)


def needs(*words: Any, **more: Any) -> Any:
    found = all_needs(*words, **more).needs
    return {app: [(need.power, need.level) for need in some] for app, some in found.items()}


OWN = {"app": {"exec": ["/a"], "user": "0", "group": "0"}}


def test_each_level_is_asked_for_the_same() -> None:
    assert needs(request({"a": {}}), {"a": {PRIVILEGED: True}}, {}) == {"a": [(PRIVILEGED, "its image")]}
    assert needs(request({"a": OWN}), {"a": {PRIVILEGED: True}}, {}) == {"a": [(PRIVILEGED, "its app")]}
    assert needs(request({"a": {}}), {"a": {}}, {PRIVILEGED: True}) == {"": [(PRIVILEGED, "the pod")]}
    assert (
        needs(request({"a": {}}), {"a": {PRIVILEGED: False, "x.y/z": 1}}, {NAMESPACES: {"net": "private"}}) == {}
    )


def test_what_root_types_is_his_own_word() -> None:
    typed = AppOverrides(isolators=((PRIVILEGED, True),))
    assert needs(request({"a": {}}, overrides={"a": typed}), {"a": {PRIVILEGED: True}}, {}) == {}
    pod = request({"a": {}}, isolators=((NAMESPACES, {"pid": "host"}),))
    both = {NAMESPACES: {"pid": "host", "ipc": "host"}}
    assert needs(pod, {"a": {}}, both, "pid ipc") == {"": [(f"{NAMESPACES}=ipc", "the pod")]}
    assert with_isolators((Isolator(NAMESPACES, {"ipc": "host"}),), pod.isolators)[0].value == both[NAMESPACES]


def test_what_root_types_for_an_app_is_no_word_for_another() -> None:
    """But a namespace is all of a pod's."""
    typed = AppOverrides(isolators=((PRIVILEGED, True), (NAMESPACES, {"pid": "host"})))
    wanted = request({"a": {}, "b": {}}, overrides={"a": typed})
    asks = {PRIVILEGED: True, NAMESPACES: {"pid": "host"}}
    assert needs(wanted, {"a": asks, "b": asks}, {}, "pid") == {"b": [(PRIVILEGED, "its image")]}
    assert needs(wanted, {"a": asks, "b": {}}, {PRIVILEGED: True}, "pid") == {"": [(PRIVILEGED, "the pod")]}
    everyones = request({"a": {}, "b": {}}, isolators=((PRIVILEGED, True),))
    assert needs(everyones, {"a": asks, "b": asks}, {PRIVILEGED: True}) == {}


def test_a_namespace_that_one_app_asks_for_is_everyones() -> None:
    asked = needs(request({"a": {}, "b": {}}), {"a": {NAMESPACES: {"pid": "host"}}, "b": {}}, {}, "pid")
    power = f"{NAMESPACES}=pid"
    assert asked == {"a": [(power, "its image")], "": [(power, "a")]}
    # Where somebody else has decided, it is nobody's to ask for.
    assert needs(request({"a": {}}), {"a": {NAMESPACES: {"pid": "host"}}}, {}, "") == {}


def test_devices_are_powers_one_by_one_but_for_those_that_all_have() -> None:
    value = [
        "/dev/fuse",
        {"path": "/dev/x", "hostPath": "/dev/sda"},
        {"path": "/dev/seed", "hostPath": "/dev/zero"},
        {"path": "/dev/screen", "hostPath": "/dev/console"},
    ]
    assert needs(request({"a": {}}), {"a": {"kurma.io/devices": value}}, {})["a"] == [
        ("kurma.io/devices=/dev/fuse", "its image"),
        ("kurma.io/devices=/dev/sda", "its image"),
        # The host's, which is not the one that apps have by that name.
        ("kurma.io/devices=/dev/console", "its image"),
    ]


#: Isolators of an app, whether its image came from a registry, and the powers that they ask for.
ASKED: list[tuple[dict[str, Any], bool, list[str]]] = [
    # Capabilities: beyond the default of the image's kind.
    ({RETAIN: {"set": ["CAP_CHOWN", "CAP_NET_RAW"]}}, False, []),
    ({RETAIN: {"set": ["CAP_CHOWN", "CAP_NET_RAW"]}}, True, [f"{RETAIN}=CAP_NET_RAW"]),
    (
        {RETAIN: {"set": ["CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH"]}},
        False,
        [f"{RETAIN}=CAP_DAC_READ_SEARCH", f"{RETAIN}=CAP_SYS_ADMIN"],
    ),
    ({REMOVE: {"set": ["CAP_CHOWN"]}}, False, []),
    ({REMOVE: {"set": []}}, True, []),
    # Filters of system calls: what the default profile refuses to an app with these capabilities.
    ({PROFILE: "default"}, False, []),
    ({PROFILE: "none"}, False, [f"{PROFILE}=none"]),
    ({CALLS: {"set": ["@appc.io/all"]}}, False, [f"{CALLS}=@appc.io/all"]),
    ({CALLS: {"set": ["@appc.io/empty"]}}, False, []),
    ({CALLS: {"set": ["read", "clone", "clone3", "socket", "unshare", "personality"]}}, False, []),
    ({CALLS: {"set": ["read", "mount", "ptrace", "bpf"]}}, False, [f"{CALLS}=bpf", f"{CALLS}=mount"]),
    ({CALLS: {"set": ["@rkt/default-whitelist", "@docker/default-whitelist"]}}, True, []),
    (
        {CALLS: {"set": ["@docker/default-blacklist", "@systemd/mount", "@systemd/io-event"]}},
        False,
        [f"{CALLS}=@docker/default-blacklist", f"{CALLS}=@systemd/mount"],
    ),
    (
        {CALLS: {"set": ["mount", "open_by_handle_at"]}, RETAIN: {"set": ["CAP_DAC_READ_SEARCH"]}},
        False,
        [f"{RETAIN}=CAP_DAC_READ_SEARCH", f"{CALLS}=mount"],
    ),
    ({CALLS: {"set": ["chroot"]}, REMOVE: {"set": ["CAP_SYS_CHROOT"]}}, False, [f"{CALLS}=chroot"]),
    ({CALLS: {"set": ["@rkt/default-whitelist"]}, REMOVE: {"set": ["CAP_SYS_CHROOT"]}}, False, []),
    ({"os/linux/seccomp-remove-set": {"set": ["ptrace"]}}, False, []),
    # An app that is privileged has no filter by default.
    ({PRIVILEGED: True, CALLS: {"set": ["mount"]}}, False, [PRIVILEGED]),
    ({PRIVILEGED: True, PROFILE: "none"}, False, [PRIVILEGED]),
    # Processes and scores.
    ({"kurma.io/pids-limit": {"limit": 2048}, "os/linux/oom-score-adj": 0}, False, []),
    ({"kurma.io/pids-limit": {"limit": "2049"}}, False, ["kurma.io/pids-limit"]),
    ({"kurma.io/pids-limit": {"limit": "unlimited"}}, False, ["kurma.io/pids-limit"]),
    ({"os/linux/oom-score-adj": -1}, False, ["os/linux/oom-score-adj"]),
    ({"kurma.io/ulimits": {"core": 0, "nofile": [20000, 20000], "memlock": [1, 8192]}}, False, []),
    (
        {"kurma.io/ulimits": {"nofile": [1, 20001], "memlock": -1, "stack": -1}},
        False,
        ["kurma.io/ulimits=memlock", "kurma.io/ulimits=nofile"],
    ),
    # What divides or limits: an app's shares count within its pod.
    ({"os/linux/cpu-shares": 262144, "resource/cpu": {"limit": 64}}, False, []),
    ({"resource/memory": {"request": "1G", "limit": "2G"}, "os/linux/no-new-privileges": False}, False, []),
    ({"resource/block-iops": {"default": True, "limit": 1}}, False, []),
]


@pytest.mark.parametrize(("isolators", "from_registry", "powers"), ASKED)
def test_whatever_is_beyond_the_default_is_a_power(
    isolators: dict[str, Any], from_registry: bool, powers: list[str], quiet_host: IsolatorHost
) -> None:
    """In the image, in the pod's app, in an app that is added; and never what the caller gives."""
    kind = {"fewer_capabilities": ["a"] if from_registry else [], "host": quiet_host}
    for app, level in (({}, "its image"), (OWN, "its app")):
        found = needs(request({"a": app}), {"a": isolators}, {}, **kind)
        assert sorted(found.get("a", [])) == [(power, level) for power in powers], level
    own = tuple(Isolator(*pair) for pair in isolators.items())
    added, pod = request({"a": {}}), request({"b": {}}).template.pod
    later = grants.needs_of_new(added, pod, own, PLUGINS, quiet_host, fewer_capabilities=from_registry)
    assert sorted(need.power for need in later.needs.get("a", ())) == powers
    typed = request({"a": {}}, overrides={"a": AppOverrides(isolators=tuple(isolators.items()))})
    mine = all_needs(typed, {"a": isolators}, {}, **kind)
    assert (mine.needs, mine.given) == ({}, {"a": tuple(powers)} if powers else {})
    assert mine.notes(configured=False) == tuple(
        f"app a: its image has {power} by the command line" for power in powers
    )


@pytest.fixture
def quiet_host(tmp_path: Path) -> IsolatorHost:
    """Kurma's own score is 0 there, it has limits of open files and locked memory, and no security module is."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/oom_score_adj").write_text("0")
    limits = {"nofile": "20000", "memlock": "8192"}
    (tmp_path / "proc/self/limits").write_text(
        "Limit\n" + "".join(f"{name:47}{limits.get(name, 'unlimited')}\n" for name in RLIMITS)
    )
    return replace(HOST, root=str(tmp_path))


@pytest.mark.parametrize(
    ("isolator", "value", "power"),
    [
        ("os/linux/cpu-shares", 1025, True),
        ("os/linux/cpu-shares", 1024, False),
        ("resource/cpu", {"limit": "1100m"}, True),
        ("resource/cpu", {"request": 1, "limit": 4}, False),
        ("kurma.io/pids-limit", {"limit": "unlimited"}, False),
        ("resource/memory", {"limit": "64G"}, False),
        ("os/unix/sysctl", {"net.ipv4.ip_forward": "1"}, False),
    ],
)
def test_what_is_beyond_the_default_of_a_pod(isolator: str, value: Any, power: bool) -> None:
    wanted = {"": [(isolator, "the pod")]} if power else {}
    assert needs(request({"a": {}}), {"a": {}}, {isolator: value}) == wanted
    assert needs(request({"a": {}}, isolators=((isolator, value),)), {"a": {}}, {isolator: value}) == {}


def test_a_score_below_the_usual_one_is_a_power(quiet_host: IsolatorHost) -> None:
    """Kurma's own; but kurmad's is lower than what its apps begin with."""
    score = {"os/linux/oom-score-adj": 100}
    own = Path(quiet_host.root, "proc/self/oom_score_adj")
    for kurmas, found in (("500", {"a": [("os/linux/oom-score-adj", "its image")]}), ("-900", {})):
        own.write_text(kurmas)
        assert needs(request({"a": {}}), {"a": score}, {}, host=quiet_host) == found
    assert needs(request({"a": {}}), {"a": {"os/linux/oom-score-adj": -1}}, {}, host=quiet_host) != {}


def test_another_label_than_kurmas_own_is_a_power(quiet_host: IsolatorHost) -> None:
    """Where Kurma is unconfined, every profile takes away."""
    root = Path(quiet_host.root)
    apparmor, selinux = "os/linux/apparmor-profile", "os/linux/selinux-context"
    context = {"user": "u", "role": "r", "type": "spc_t", "level": "s0"}
    asks = {apparmor: "web", selinux: context}
    both = [(f"{apparmor}=web", "its image"), (f"{selinux}=u:r:spc_t:s0", "its image")]
    assert needs(request({"a": {}}), {"a": asks}, {}, host=quiet_host) == {}
    for name in ("sys/module/apparmor/parameters", "sys/fs/selinux", "proc/self/attr/apparmor"):
        (root / name).mkdir(parents=True)
    (root / "sys/module/apparmor/parameters/enabled").write_text("Y\n")
    for profile, own, found in (
        ("unconfined\n", "u:r:unconfined_service_t:s0\0", []),
        ("web (enforce)\n", "u:r:spc_t:s0\0", []),
        ("kurma (enforce)\n", "u:r:kurma_t:s0\0", both),
    ):
        (root / "proc/self/attr/apparmor/current").write_text(profile)
        (root / "proc/self/attr/current").write_text(own)
        assert needs(request({"a": {}}), {"a": asks}, {}, host=quiet_host) == ({"a": found} if found else {})


def test_the_pods_file_is_not_the_callers_word_and_kurma_yml_is() -> None:
    """Of what stands in kurma.yml itself, what the image asks for needs a grant all the same."""
    asks = {PRIVILEGED: True}
    entry = {**OWN, "app": {**OWN["app"], "isolators": [{"name": PRIVILEGED, "value": True}]}}
    shared = {NAMESPACES: {"pid": "host"}}
    pod = [{"name": NAMESPACES, "value": {"pid": "host"}}]
    template = {"apps": [{"name": "a", "image": "x", **entry}, {"name": "b", "image": "y"}], "isolators": pod}
    written = PodRequest(PodTemplate.parse(template))
    apps: dict[str, dict[str, Any]] = {"a": asks, "b": asks}
    own, image = [(PRIVILEGED, "its app")], [(PRIVILEGED, "its image")]
    everyones = [(f"{NAMESPACES}=net", "the pod"), (f"{NAMESPACES}=pid", "the pod")]
    assert needs(written, apps, shared, "pid", of_file=["net"]) == {"a": own, "b": image, "": everyones}
    configured = all_needs(replace(written, configured=True), apps, shared, "pid", of_file=["net"])
    assert list(configured.needs) == ["b"]
    assert configured.notes(configured=True) == (
        f"the pod has {NAMESPACES}=pid by its entry in kurma.yml",
        f"app a: its image has {PRIVILEGED} by its entry in kurma.yml",
    )


def test_the_callers_grant_is_as_one_of_kurma_yml() -> None:
    power, read = f"{RETAIN}=CAP_SYS_ADMIN", f"{API}=read"
    wanted = {
        "web": (Need(power, "its image"), Need(API, "its image", read)),
        "": (Need(PRIVILEGED, "the pod"),),
    }
    nothing = services({}, image())

    def had(*own: str, pod: tuple[str, ...] = ()) -> list[str]:
        notes = grants.check_app(wanted, "web", ID, nothing, (), {"web": own, "": pod})
        return [note.removeprefix("app web: its image example.com/app has ") for note in notes]

    with_grant = [f"{one} by --grant" for one in (power, API, PRIVILEGED)]
    assert had(power, API, PRIVILEGED) == had(RETAIN, f"{API}=full", PRIVILEGED) == with_grant
    assert had(RETAIN, read, pod=(PRIVILEGED,))[1] == f"{read} by --grant"
    for own, pod in (
        ((power, API), ()),
        ((), (power, API, PRIVILEGED)),
        ((f"{RETAIN}=CAP_KILL", API), (PRIVILEGED,)),
    ):
        with pytest.raises(PowerError):
            had(*own, pod=pod)
    for made, way in ((False, "give"), (True, "prepare the pod anew with")):
        with pytest.raises(PowerError) as caught:
            grants.check_app(wanted, "web", ID, nothing, made=made)
        options = f"--grant {power} --grant {API} --grant {PRIVILEGED}"
        start = f"if it is meant, {way} {options}; or for good, add to kurma.yml: grants: "
        assert (caught.value.hint or "").startswith(start)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("os/linux/privilegd", PRIVILEGED),
        ("os/linux/namespace=pid", NAMESPACES),
        (f"{NAMESPACES}=pidd", f"{NAMESPACES}=pid"),
        (f"{RETAIN}=CAP_SYS_ADMN", f"{RETAIN}=CAP_SYS_ADMIN"),
        ("os/linux/no-new-privileges", PRIVILEGED),
        (f"{PROFILE}=nome", f"{PROFILE}=none"),
    ],
)
def test_a_grant_of_no_power_names_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(UsageError, match="--grant: there is no power") as caught:
        grants.check_grants([PRIVILEGED, word], PLUGINS)
    assert caught.value.hint == f"did you mean {meant}?"


def test_every_power_can_be_granted() -> None:
    words = {power for isolators, _, powers in ASKED for power in powers}
    grants.check_grants([*words, *GATED, "kurma.io/devices=/dev/fuse", f"{API}=full"], PLUGINS)


def test_namespaces_are_the_pods_then_its_apps_who_must_agree() -> None:
    def isolator(**words: str) -> tuple[Isolator, ...]:
        return (Isolator(NAMESPACES, words),)

    assert isolators.namespace_wishes(
        isolator(pid="private"), {"a": isolator(pid="host", ipc="host")}, PLUGINS
    ) == {
        "pid": "private",
        "ipc": "host",
    }
    with pytest.raises(IsolatorError, match="app b asks for the net namespace to be private, and app a for the"):
        isolators.namespace_wishes((), {"a": isolator(net="host"), "b": isolator(net="private")}, PLUGINS)
    both = {"a": isolator(net="host"), "b": isolator(net="private")}
    assert isolators.namespace_wishes(isolator(net="private"), both, PLUGINS) == {"net": "private"}


def test_the_hosts_ipc_brings_its_shared_memory() -> None:
    shared = frozenset({"ipc", "net", "user"})
    memory = HostMount("/dev/shm", "/dev/shm")
    assert isolators.namespace_plan(shared) == IsolatorPlan(namespaces={"ipc": "host"}, mounts=(memory,))
    assert isolators.namespace_plan(frozenset({"net", "user"})) == IsolatorPlan()


# --- what is said ---


class Images:
    def __init__(self, *images: Vouchers) -> None:
        self.known = {one.id: one for one in images}

    def vouchers(self, ident: str, *, insecure: Any) -> Vouchers:
        return self.known[ident]


def services(grants: dict[str, GrantConfig], *images: Vouchers) -> Any:
    return SimpleNamespace(config=SimpleNamespace(grants=grants), images=Images(*images))


@pytest.mark.parametrize("level", ["its image", "its app", "the pod", "other"])
@pytest.mark.parametrize("had", [{}, {"web": grant(digests=("sha256:" + "0" * 64,))}])
@pytest.mark.parametrize(
    ("one", "says"),
    [
        (image(signers=(MALLORY,)), f"signed by {MALLORY}"),
        (image("example.com/a~b", signers=()), "carries no signature"),
        (image(signers=(), lapsed={ALICE: "revoked"}), f"its signer's key {ALICE} was revoked"),
        (image(signers=(), lapsed={ALICE: "unknown"}), "is not trusted for that name any more"),
        (
            image(parts=(image("example.com/base", signers=(), id="sha512-" + "2" * 128),)),
            "depends on example.com/base, which is not signed",
        ),
    ],
)
def test_the_line_of_a_refusal_allows_it(
    level: str, had: dict[str, GrantConfig], one: Vouchers, says: str, tmp_path: Path
) -> None:
    wanted = {"web": (Need(f"{NAMESPACES}=pid", level),)}
    with pytest.raises(PowerError) as caught:
        grants.check_app(wanted, "web", ID, services(had, one))
    error = caught.value
    assert says in error.message
    for word in ("app web", one.name, f"{NAMESPACES}=pid", *([level] if level == "other" else [])):
        assert word in error.message
    line = error.hint.split(": ", 1)[1]
    if had:
        assert "web-2" in yaml.safe_load(line)
        line = f"grants: {{{line}}}"
    file = tmp_path / "kurma.yml"
    file.write_text(line + "\n")
    granted = config.load(str(file)).grants
    assert grants.check_app(wanted, "web", ID, services(dict(granted), one)) == (
        f"app web: its image {one.name} has {NAMESPACES}=pid by the grant {next(iter(granted))} of kurma.yml",
    )


def test_a_grant_of_one_power_gives_no_other() -> None:
    wanted = {"web": (Need(f"{NAMESPACES}=pid", "its image"),)}
    for word, enough in (
        (NAMESPACES, True),
        (f"{NAMESPACES}=pid", True),
        (f"{NAMESPACES}=net", False),
        ("os", False),
    ):
        some = {"g": grant(images=("example.com",), isolators=(word,))}
        if enough:
            assert grants.check_app(wanted, "web", ID, services(some, image()))
        else:
            with pytest.raises(PowerError):
                grants.check_app(wanted, "web", ID, services(some, image()))


@pytest.mark.parametrize(
    ("words", "read", "full"),
    [
        ((f"{API}=read",), f"{API}=read", f"{API}=read"),
        ((API,), f"{API}=read", API),
        ((f"{API}=full",), f"{API}=read", API),
        ((f"{API}=read", API), f"{API}=read", API),
        ((PRIVILEGED, f"{API}=write"), None, None),
    ],
)
def test_who_wants_all_is_content_with_a_part(words: tuple[str, ...], read: str | None, full: str | None) -> None:
    """What is asked for as ``"read"`` and as ``true``, and what is had of it."""
    some = {"g": grant(images=("example.com",), isolators=words)}
    for value, had in (("read", read), (True, full)):
        (power,) = LinuxIsolators().powers(API, value, "app", HOST)
        need = Need(power.name, "its image", power.least)
        if had is None:
            with pytest.raises(PowerError, match=power.name):
                grants.check_app({"web": (need,)}, "web", ID, services(some, image()))
        else:
            found = grants.check_app({"web": (need,)}, "web", ID, services(some, image()))
            assert found == (f"app web: its image example.com/app has {had} by the grant g of kurma.yml",)


def test_all_that_is_refused_is_told_at_once(tmp_path: Path) -> None:
    """One line, pasted once, gives it all; what is granted already is not in it."""
    wanted = {
        "web": (
            Need(PRIVILEGED, "its image"),
            Need("host/privileged", "its image"),
            Need(f"{NAMESPACES}=pid", "web"),
        ),
        "": (
            Need(PRIVILEGED, "the pod"),
            Need(f"{NAMESPACES}=pid", "web"),
            Need("kurma.io/devices=/dev/a", "the pod"),
        ),
    }
    had = {"first": grant(images=("example.com",), isolators=("host/privileged",))}
    with pytest.raises(PowerError) as caught:
        grants.check_app(wanted, "web", ID, services(had, image()))
    assert caught.value.message.startswith(
        "app web: its image example.com/app asks for os/linux/privileged; the pod asks for os/linux/privileged, "
        "kurma.io/devices=/dev/a, which its image example.com/app would have as well: beyond the default"
    )
    file = tmp_path / "kurma.yml"
    file.write_text(f"grants: {{{caught.value.hint.split(': ', 1)[1]}}}\n")
    granted = config.load(str(file)).grants
    assert granted["web"].isolators == (PRIVILEGED, "kurma.io/devices=/dev/a")
    assert len(grants.check_app(wanted, "web", ID, services({**had, **granted}, image()))) == 4


def test_every_app_of_a_pod_is_looked_at() -> None:
    ours, theirs = image(), image("example.net/other", id="sha512-" + "1" * 128)
    wanted = {"": (Need(PRIVILEGED, "the pod"),)}
    some = services({"g": grant(images=("example.com",))}, ours, theirs)
    assert len(grants.check_pod(wanted, {"a": ours.id}, some)) == 1
    with pytest.raises(
        PowerError, match=r"app b: the pod asks for .* which its image example.net/other would have"
    ):
        grants.check_pod(wanted, {"a": ours.id, "b": theirs.id}, some)


def test_needs_are_on_record() -> None:
    assert PodDocument.__doc__ is not None
    need = Need(PRIVILEGED, "the pod")
    assert Need(**need.to_json()) == need
    assert (need.isolator, Need("a/b=c", "x").isolator) == (PRIVILEGED, "a/b")


# --- configuration ---


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"images": ["example.com/a"]}, "grants.x: it has no `isolators`"),
        ({"isolators": ["a/b"]}, "neither `images` nor `digests`"),
        ({"isolators": ["a/b"], "images": ["example.com"], "digests": [ID]}, "both `images` and `digests`"),
        ({"isolators": ["a/b"], "signers": [ALICE], "digests": [ID]}, "a digest needs no signer"),
        ({"isolators": ["a/b"], "images": ["Example.com"]}, r"grants.x.images\[0\]: expected an image's name"),
        ({"isolators": ["a/b"], "images": [""]}, r"images\[0\]: expected an image's name"),
        ({"isolators": ["a/b"], "digests": [ID[:50]]}, r"digests\[0\]: expected an image's whole ID"),
        ({"isolators": ["a/b"], "digests": [ID.upper()]}, r"digests\[0\]: .* in lower case"),
        ({"isolators": ["a/b"], "digests": ["sha512-" + "A" * 128]}, r"digests\[0\]: .* in lower case"),
        ({"isolators": ["a/b"], "images": ["example.com//"]}, r"images\[0\]: expected an image's name"),
        ({"isolators": ["a/b"], "images": ["*"]}, r"images\[0\]: expected an image's name"),
        ({"isolators": ["a/b"], "images": ["example.com"], "signers": ["me"]}, r"signers\[0\]: expected a key's"),
    ],
)
def test_a_grant_that_says_nothing_is_an_error(entry: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "kurma.json"
    file.write_text(json.dumps({"grants": {"x": entry}}))
    with pytest.raises(ConfigError, match=says):
        config.load(str(file))


def test_drop_ins_add_grants(tmp_path: Path) -> None:
    (tmp_path / "kurma.d").mkdir()
    for number, name in enumerate(("one", "two")):
        entry = {"images": [f"example.com/{name}/"], "isolators": ["host/privileged"]}
        (tmp_path / "kurma.d" / f"{number}.json").write_text(json.dumps({"grants": {name: entry}}))
    grants = config.load(str(tmp_path)).grants
    assert {name: one.images for name, one in grants.items()} == {
        "one": ("example.com/one",),
        "two": ("example.com/two",),
    }
