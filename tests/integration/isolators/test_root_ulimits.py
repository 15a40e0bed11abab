"""Resource limits of an app: read back from inside, refused where this host cannot give them, granted (21)."""

from __future__ import annotations

import resource

import pytest
from kurma_isolators_linux import procfs

from kurma_core.errors import IsolatorError, KurmaError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.linux.capabilities import BITS
from kurma_core.models.isolator import RLIMITS
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

NAME = "kurma.io/ulimits"
#: Each limit of the kernel, with values that differ from those with which apps start.
EVERY = {
    **{name: [1 << 30, 1 << 31] for name in ("data", "core", "rss", "as", "fsize")},
    "cpu": [100, 200],
    "stack": [1 << 20, 1 << 22],
    "nproc": [500, 600],
    "nofile": [20, 30],
    "memlock": 4096,
    "locks": [11, 12],
    "sigpending": 77,
    "msgqueue": 1000,
    "nice": 0,
    "rtprio": 0,
    "rttime": [5_000_000, -1],
}
READ = "tail -n +2 /proc/self/limits | sed 's/^.\\{26\\}//' | awk '{print $1, $2}'"


def shown(limits):
    pairs = {name: pair if isinstance(pair, list) else [pair, pair] for name, pair in limits.items()}
    words = [["unlimited" if one == -1 else str(one) for one in pairs[name]] for name in RLIMITS]
    return "".join(f"{soft} {hard}\n" for soft, hard in words)


def app(script, limits, **more):
    return shell(script, isolators=[{"name": NAME, "value": limits}], **more)


@pytest.mark.vm
@pytest.mark.parametrize("userns", ["none", "auto"])
def test_all_that_runs_in_the_app_has_all_of_the_kernels_limits(house, userns):
    assert sorted(EVERY) == sorted(RLIMITS)
    handlers = [{"name": "pre-start", "exec": ["/bin/sh", "-c", READ]}]
    apps = {
        "limited": app(f"{READ}; exec sleep 1000", EVERY, user="1000", eventHandlers=handlers),
        "usual": shell(f"{READ}; exec sleep 1000"),
    }
    with house.running(apps, userns=userns) as pod:
        until(lambda: house.log(pod, "limited") == shown(EVERY) * 2, "the limits")
        assert house.enter(pod.uuid, "sh", "-c", READ, app="limited")[1] == shown(EVERY)
        own = {name: list(resource.getrlimit(number)) for number, name in enumerate(RLIMITS)}
        until(lambda: house.log(pod, "usual") == shown(own), "Kurma's own limits")
        (report,) = [one for one in house.client.pod(pod.uuid).isolators if one.name == NAME]
        assert (report.scope, report.outcome) == ("limited", "enforced")
        assert "nofile 20:30" in report.amounts
        assert "rttime 5000000:unlimited" in report.amounts


@pytest.mark.parametrize(
    "limits",
    [
        {"nofile": 3, "fsize": 0, "locks": 0, "memlock": 0, "core": 0, "sigpending": 0, "msgqueue": 0},
        {"as": 8 << 20, "data": 1 << 20, "stack": 1 << 18},
        {"nproc": 0},
    ],
)
def test_small_limits_do_not_hinder_the_set_up_of_the_app(house, limits):
    record, output = house.run({"main": app("echo up", limits, user="1000")})
    assert (output, record.exit_code) == ("up\n", 0)


@pytest.mark.vm
@pytest.mark.parametrize("userns", ["none", "auto"])
def test_the_kernel_enforces_them(house, userns):
    """Of open files, and of processes: root of a user namespace is limited, root of the host is not."""
    script = "exec 3<>/made 4</made 5</made; echo open; exec 6</made"
    record, output = house.run({"main": app(script, {"nofile": 6})}, userns=userns)
    assert output.startswith("open\n")
    assert record.exit_code != 0
    record, output = house.run({"main": app("sleep 0 & wait; echo end", {"nproc": 1})}, userns=userns)
    assert ("can't fork" in output) == (userns == "auto"), output


@pytest.mark.vm
@pytest.mark.parametrize("userns", ["none", "auto"])
def test_more_than_kurma_has_is_refused_or_granted(house, userns):
    """Kurma refuses an image that asks for a higher hard limit. With a grant, it gives the limit if it has
    CAP_SYS_RESOURCE. A refusal leaves no pod."""
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("no limit is above Kurma's own")
    before = house.client.pods()
    more = app(READ, {"memlock": [4096, hard + 4096]})
    with pytest.raises(KurmaError, match=f"{NAME}=memlock"):
        house.run({"main": more}, userns=userns)
    assert house.client.pods() == before
    if BITS["CAP_SYS_RESOURCE"] in procfs.capabilities(IsolatorHost({}, 1)):
        _, output = house.run({"main": more}, grants=(NAME,), userns=userns)
        assert output.splitlines()[RLIMITS.index("memlock")] == f"4096 {hard + 4096}"
    else:
        with pytest.raises(IsolatorError, match=f"memlock: a hard limit of {hard + 4096} is above Kurma's own"):
            house.run({"main": more}, grants=(NAME,), userns=userns)
        assert house.client.pods() == before
    with pytest.raises(IsolatorError, match="nofile: a hard limit of unlimited is above the kernel's maximum"):
        house.run({"main": app("true", {"nofile": -1})}, grants=(NAME,))
