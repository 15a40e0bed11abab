"""Health checks: what a pod file, an annotation and an image say of them (21.5)."""

from __future__ import annotations

import pytest

from kurma_core.appc.health_check import of_app as of
from kurma_core.appc.manifest_reader import refuse_unknown
from kurma_core.appc.pod import PodApp
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ManifestError
from kurma_core.models.health import HEALTH_CHECK, AppHealth, HealthCheck, HealthResult, HttpCheck, TcpCheck

Json = object
AT = "2026-01-01T00:00:00.000000Z"
IMAGES = HealthCheck(command=("true",), interval=7.0, retries=9)


def app(check: Json, **more: Json) -> PodApp:
    document = {"apps": [{"name": "web", "image": "./web.aci", "healthCheck": check, **more}]}
    return PodTemplate.parse(document, warn=refuse_unknown).pod.apps[0]


def of_app(app: PodApp, image: HealthCheck | None) -> HealthCheck | None:
    return of(app.name, app.annotation(HEALTH_CHECK), image)


def result(code: int | None) -> HealthResult:
    return HealthResult(started_at=AT, finished_at=AT, exit_code=code, output="")


def test_a_pod_file_changes_single_settings_of_the_image() -> None:
    assert of_app(app({"interval": "1m30s", "onFailure": "kill"}), IMAGES) == HealthCheck(
        command=("true",),
        interval=90.0,
        timeout=30.0,
        start_period=0.0,
        start_interval=5.0,
        retries=9,
        on_failure="kill",
    )
    assert of_app(app(False), IMAGES) is None
    assert of_app(app(None), IMAGES) == IMAGES.completed()
    assert of_app(app(None), None) is None


def test_a_command_is_a_list_or_one_text_for_a_shell() -> None:
    found = of_app(app({"command": "a | b"}), IMAGES)
    assert found is not None
    assert found.command == ("/bin/sh", "-c", "a | b")
    found = of_app(app({"command": ["a", "b c"], "interval": 2}), None)
    assert found is not None
    assert (found.command, found.interval) == (("a", "b c"), 2)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", 'healthCheck.command: expected a command, found ""'),
        (" ", 'healthCheck.command: expected a command, found " "'),
        ("a\0b", 'healthCheck.command: expected text without NUL, found "a\\x00b"'),
        (["a", "b\0"], "healthCheck.command: expected text without NUL, found a list"),
    ],
)
def test_a_command_that_no_app_can_run(command: Json, why: str) -> None:
    with pytest.raises(ManifestError) as refused:
        app({"command": command})
    assert why in str(refused.value)


def test_a_way_to_check_replaces_that_of_the_image() -> None:
    found = of_app(app({"tcp": {"port": 5432}}), IMAGES)
    assert found is not None
    assert (found.ways, found.tcp, found.interval) == (("tcp",), TcpCheck(port=5432), 7.0)
    found = of_app(app({"http": {"port": 80, "host": "localhost"}, "retries": 1}), None)
    assert found is not None
    assert (found.http, found.retries) == (HttpCheck(port=80), 1)
    assert (HttpCheck(port=80).url, HttpCheck(port=81, host="::1", path="/a").url) == (
        "http://127.0.0.1:80/",
        "http://[::1]:81/a",
    )


def test_an_image_cannot_have_requests_sent() -> None:
    """Its record has a command alone."""
    assert of_app(app(None), HealthCheck(tcp=TcpCheck(port=1))) is None


def test_the_key_counts_before_the_annotation_and_survives_as_one() -> None:
    found = app({"command": ["a"]}, annotations=[{"name": HEALTH_CHECK, "value": "none"}])
    assert found.annotation(HEALTH_CHECK) == '{"command":["a"]}'
    again = PodTemplate.parse(PodTemplate.parse({"apps": [{**found.to_json(), "image": "x"}]}).to_json())
    assert again.pod.apps[0].annotation(HEALTH_CHECK) == '{"command":["a"]}'


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (True, "expected false, or an object, found true"),
        ({"command": 5}, r"healthCheck\.command: expected a list"),
        ({"interval": "soon"}, r'healthCheck\.interval: expected seconds, or a duration such as "30s"'),
        ({"interval": 0}, r"healthCheck\.interval: expected a number from 0\.1 to 604800"),
        ({"retries": 0}, r"healthCheck\.retries"),
        ({"onFailure": "weep"}, "expected one of none, kill, restart, stop"),
        ({"intervall": 3}, r"unknown key .*healthCheck\.intervall"),
        ({"http": {"port": 1, "pat": "/"}}, r"unknown key .*healthCheck\.http\.pat; did you mean path"),
        ({"http": {}}, r"healthCheck\.http\.port is missing|healthCheck\.http\.port: expected an integer"),
        ({"http": {"port": 0}}, r"healthCheck\.http\.port: expected an integer from 1 to 65535"),
        ({"http": {"port": 1, "path": "x"}}, r"healthCheck\.http\.path: expected a path that begins with /"),
        ({"http": {"port": 1, "path": "/a b"}}, r"healthCheck\.http\.path: expected a path"),
        ({"http": {"port": 1, "path": "/a\r\nX: y"}}, r"healthCheck\.http\.path: expected printable ASCII"),
        ({"http": {"port": 1, "path": "/" + 4096 * "a"}}, r"healthCheck\.http\.path: expected up to 4096"),
        ({"http": {"port": 1, "scheme": "ftp"}}, r"healthCheck\.http\.scheme: expected one of http, https"),
        ({"http": {"port": 1, "host": "shop.example"}}, r"healthCheck\.http\.host: expected an IP address"),
        ({"http": {"port": 1, "host": "fe80::1%eth0"}}, r"healthCheck\.http\.host: expected an IP address"),
        (
            {"http": {"port": 1, "headers": [{"name": "a b", "value": ""}]}},
            r"headers\[0\]\.name: expected the name",
        ),
        ({"http": {"port": 1, "headers": [{"name": "Content-Length", "value": "1"}]}}, "expected a header other"),
        (
            {"http": {"port": 1, "headers": [{"name": "a", "value": "b\nc"}]}},
            r"headers\[0\]\.value: expected print",
        ),
        (
            {"http": {"port": 1, "headers": [{"name": "Host", "value": "a"}, {"name": "host", "value": "b"}]}},
            "one",
        ),
        ({"tcp": {"port": "http"}}, r"healthCheck\.tcp\.port: expected an integer"),
        ({"tcp": {"port": 1}, "command": "a"}, "expected one of command, http, tcp, found command and tcp"),
    ],
)
def test_what_a_pod_file_cannot_say(check: Json, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        app(check)


@pytest.mark.parametrize("text", ["", "5", "[]", "{", '{"interval": "3s"}'])
def test_a_malformed_annotation(text: str) -> None:
    with pytest.raises(ManifestError, match=r"app web: annotation kurma\.io/health-check"):
        of_app(app(None, annotations=[{"name": HEALTH_CHECK, "value": text}]), None)


@pytest.mark.parametrize("check", [{"interval": 3}, {"command": []}, {"command": [""]}])
def test_without_a_command(check: Json) -> None:
    with pytest.raises(ManifestError, match="app web: its health check: expected a command") as caught:
        of_app(app(check), None)
    assert "--health-cmd" in str(caught.value.hint)


def states(codes: list[int | None], starting: int = 0, retries: int = 2) -> list[tuple[str, int]]:
    """:param starting: checks in the start period."""
    check, health, found = HealthCheck(command=("x",), retries=retries).completed(), AppHealth(), []
    for number, code in enumerate(codes):
        health = health.after(result(code), check, starting=number < starting)
        found.append((health.status, health.failing_streak))
    return found


def test_failures_in_a_row_make_an_app_unhealthy() -> None:
    assert states([0, 1, None, 0, 1]) == [
        ("healthy", 0),
        ("healthy", 1),
        ("unhealthy", 2),
        ("healthy", 0),
        ("healthy", 1),
    ]
    assert states([1, 1]) == [("starting", 1), ("unhealthy", 2)]


def test_failures_of_the_start_period_do_not_count() -> None:
    assert states([1, 1, 1, 1, 1], starting=3) == [*[("starting", 0)] * 3, ("starting", 1), ("unhealthy", 2)]
    # A success ends the period.
    assert states([0, 1, 1], starting=3) == [("healthy", 0), ("healthy", 1), ("unhealthy", 2)]


def test_five_results_are_kept() -> None:
    check, health = HealthCheck(command=("x",)).completed(), AppHealth()
    for code in range(9):
        health = health.after(result(code), check, starting=False)
    assert [one.exit_code for one in health.results] == [4, 5, 6, 7, 8]
    assert AppHealth.from_json(health.to_json()) == health
