"""The page in headless Chromium: what a person sees, types and hears of pods that run."""

import json

import pytest

from plugins.dashboard.tests.browser import NARROW, WIDE, browser
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Markup that would run a script, or change the page, if it were taken for such.
EVIL = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
#: Whether the element with the focus shows that it has it.
OUTLINED = (
    "(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0)(getComputedStyle(document.activeElement))"
)
#: The elements that reach beyond the right edge, if the page can be scrolled there.
TOO_WIDE = (
    "document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('body *')]"
    ".filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML.slice(0, 80))"
)
TALKS = "trap 'exit 0' TERM; echo 'hello from the pod'; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def chromium():
    with browser() as page:
        yield page


@pytest.fixture
def page(board, chromium):
    """The browser, on its first visit to the page, as an administrator."""
    chromium.open("about:blank")  # ends the streams of the test before
    chromium.call("Network.clearBrowserCookies")
    chromium.call("Storage.clearDataForOrigin", origin=board.address.rstrip("/"), storageTypes="all")
    chromium.size(*WIDE)
    chromium.prefer("light")
    chromium.problems.clear()
    visit(board, chromium, "admin")
    yield chromium
    assert chromium.problems == []


def visit(board, chromium, role):
    chromium.open(f"{board.address}login?token={board.token(role)}")
    chromium.wait("document.querySelector('#link').dataset.state === 'live'")


def has(page, text):
    page.wait(f"document.body.innerText.includes({json.dumps(text)})")


def show(page, where):
    page.run(f"location.hash = {json.dumps(where)}")


def click(page, label):
    """The button with that label."""
    selector = json.dumps(f"button[aria-label={json.dumps(label)}]")
    page.wait(f"document.querySelector({selector})?.disabled === false")
    page.run(f"document.querySelector({selector}).click()")


def test_a_visit(board, page):
    """The token leaves the address; the list follows what happens."""
    assert page.run("location.href") in (board.address, f"{board.address}#/pods")
    assert page.run("document.cookie") == ""
    has(page, "There are no pods yet.")
    uuid = board.run(TALKS, name="web")
    has(page, "web")
    has(page, "1 running")
    page.wait("[...document.querySelectorAll('.meter .number')].some((one) => one.textContent.includes('MiB'))")
    page.wait("document.querySelector('.meter .line').getAttribute('d').startsWith('M')")
    board.client.rm(uuid, force=True)
    has(page, "There are no pods yet.")


def test_stop_start_restart(board, page):
    uuid = board.run(TALKS, name="web")
    click(page, "Stop pod web")
    has(page, "Stop pod web?")
    page.run("document.querySelector('#confirm button[value=no]').click()")
    page.wait("!document.querySelector('#confirm').open")
    assert board.pod(uuid)["state"] == "running"
    click(page, "Stop pod web")
    page.run("document.querySelector('#confirm-yes').click()")
    has(page, "Pod web was stopped")
    click(page, "Start pod web")
    has(page, "Pod web was started")
    first = board.pod(uuid)["startedAt"]
    click(page, "Restart pod web")
    page.run("document.querySelector('#confirm-yes').click()")
    has(page, "Pod web was restarted")
    assert board.pod(uuid)["startedAt"] > first


def test_a_question_right_after_another(board, page):
    """The first dialog's end is told after the second dialog was opened."""
    uuid = board.run(TALKS, name="web")
    selector = json.dumps("button[aria-label='Stop pod web']")
    page.wait(f"document.querySelector({selector})?.disabled === false")
    stop = f"document.querySelector({selector}).click()"
    ended = "document.querySelector('#confirm').addEventListener('close', () => told(), { once: true })"
    no = "document.querySelector('#confirm button[value=no]').click()"
    page.run(f"new Promise((told) => {{ {stop}; {ended}; {no}; {stop}; }})")
    assert page.run("document.querySelector('#confirm').open") is True
    page.run("document.querySelector('#confirm-yes').click()")
    has(page, "Pod web was stopped")
    assert board.pod(uuid)["state"] == "stopped"


def test_a_managed_pod_asks_twice(board, page):
    uuid = board.run(TALKS, name="web", annotations=[{"name": "kurma.io/manager", "value": "kubelet"}])
    has(page, "managed by kubelet")
    click(page, "Stop pod web")
    has(page, "kubelet manages this pod")
    assert page.run("document.querySelector('#confirm-yes').disabled") is True
    page.run("document.querySelector('#confirm-check').click()")
    page.run("document.querySelector('#confirm-yes').click()")
    has(page, "Pod web was stopped")
    assert board.pod(uuid)["state"] == "stopped"


def test_a_pod_with_its_log(board, page):
    uuid = board.run({"one": TALKS, "two": f"echo {json.dumps(EVIL)} >&2; sleep 1000"}, name="web")
    show(page, f"#/pod/{uuid}")
    has(page, "hello from the pod")
    page.wait("document.querySelector('.log .stderr')?.textContent.includes('<script>')")
    has(page, "App one started")
    assert page.run("document.querySelectorAll('.log img, .log script').length") == 0
    page.wait("document.title === 'web – Kurma'")
    page.run(
        "(s => { s.value = 'one'; s.dispatchEvent(new Event('change')); })(document.querySelector('.card select'))"
    )
    page.wait("!document.querySelector('.log').innerText.includes('script')")
    click(page, "Stop app one")
    page.run("document.querySelector('#confirm-yes').click()")
    has(page, "App one was stopped")
    board.client.rm(uuid, force=True)
    has(page, "removed")


def test_text_of_pods_is_no_markup(board, page):
    """Names for people are free text."""
    name = [{"name": "kurma.io/manager", "value": EVIL}, {"name": "kurma.io/display-name", "value": EVIL}]
    uuid = board.run(TALKS, name="web", annotations=name)
    has(page, EVIL)
    show(page, f"#/pod/{uuid}")
    has(page, EVIL)
    show(page, "#/events")
    has(page, "running")
    assert "broken" not in page.run("document.title")
    assert page.run("document.querySelectorAll('main img, main script').length") == 0


def test_images_networks_events(board, page):
    board.run(TALKS, name="web", net="default")
    has(page, "web")
    show(page, "#/images")
    has(page, "1 pod")
    show(page, "#/networks")
    has(page, "bridge")
    page.wait("[...document.querySelectorAll('main td a')].some((one) => one.textContent === 'web')")
    show(page, "#/events")
    has(page, "running")
    assert page.run("document.querySelector('#tabs [aria-current]').textContent") == "Events"


def test_volumes_and_secrets(board, page):
    """The lists follow what happens, and no button of theirs changes anything."""
    show(page, "#/volumes")
    has(page, "There are no named volumes yet.")
    show(page, "#/secrets")
    has(page, "There are no secrets yet.")
    board.client.secret_create("key", "aHVudGVyMg==")
    show(page, "#/volumes")
    board.client.volume_create("data", uid=7, gid=8, mode="0750")
    has(page, "7:8")
    has(page, "no pod")
    mount = {"volume": "data", "path": "/srv"}
    app = {"app": shell("sleep 1000"), "secrets": [{"name": "key"}], "mounts": [mount]}
    volumes = [{"name": "data", "kind": "named"}]
    uuid = board.run({"main": app}, name="web", volumes=volumes)
    linked = "[...document.querySelectorAll('main td a')].some((one) => one.textContent === 'web')"
    page.wait(linked)
    assert page.run("document.querySelector('#tabs [aria-current]').textContent") == "Volumes"
    page.run("document.querySelector('main td a').focus()")
    other = board.run(TALKS, name="other")
    page.wait("document.querySelector('main td a') === document.activeElement")
    board.client.rm(other, force=True)
    show(page, "#/secrets")
    page.wait(linked)
    assert "hunter2" not in page.text()
    assert page.run("document.querySelectorAll('main button').length") == 0
    page.run("document.querySelector('main td a').click()")
    has(page, "Facts")
    show(page, "#/secrets")
    board.client.rm(uuid, force=True)
    has(page, "no pod")
    board.client.secret_rm("key")
    show(page, "#/volumes")
    board.client.volume_rm("data")
    has(page, "There are no named volumes yet.")
    show(page, "#/secrets")
    has(page, "There are no secrets yet.")


def test_by_the_keyboard(board, page):
    """Every control is reached by Tab, shows that it has the focus, and works by Enter or the space bar."""
    uuid = board.run(TALKS, name="web")
    has(page, "1 running")
    page.run("document.activeElement.blur()")
    reached = []
    for _ in range(16):
        page.press("Tab")
        reached.append(page.focused())
        shown = page.run(OUTLINED)
        assert shown or page.run("document.activeElement === document.body"), reached[-1]
    words = " | ".join(reached)
    for word in (
        *("Skip to content", "A Kurma", "A Pods", "A Images", "A Volumes", "A Secrets", "A Events"),
        *("Use dark colours", "Sign out"),
        *("Find a pod", "Which pods", "A web", "BUTTON Restart pod web", "BUTTON Stop pod web"),
    ):
        assert word in words, words
    page.run("document.querySelector('button[aria-label=\"Stop pod web\"]').focus()")
    page.press("Enter")
    page.wait("document.querySelector('#confirm').open")
    page.press("Escape")
    page.wait("!document.querySelector('#confirm').open")
    assert page.focused() == "BUTTON Stop pod web"
    assert board.pod(uuid)["state"] == "running"
    page.run("document.querySelector('#skip').focus()")
    page.press("Enter")
    assert page.run("document.activeElement.id") == "main"


def test_colours(board, page):
    """They follow the system until the reader chooses, and then stay."""

    def background():
        return page.run("getComputedStyle(document.body).backgroundColor")

    light = background()
    page.prefer("dark")
    dark = background()
    assert light != dark
    click(page, "Use light colours")
    assert background() == light
    page.open(board.address)
    page.wait("document.querySelector('#link').dataset.state === 'live'")
    assert background() == light
    assert contrast(page, "body") >= 7
    page.prefer("light")
    click(page, "Use dark colours")
    assert background() == dark
    assert contrast(page, "body") >= 7


def contrast(page, selector):
    """Of text and background (WCAG)."""
    return page.run(
        "((e) => { const l = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map((v) => v / 255)"
        ".map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);"
        " return 0.2126 * r + 0.7152 * g + 0.0722 * b; }; const s = getComputedStyle(e);"
        " const [a, b] = [l(s.color), l(s.backgroundColor)].sort((x, y) => y - x);"
        " return (a + 0.05) / (b + 0.05); })"
        f"(document.querySelector({json.dumps(selector)}))"
    )


@pytest.mark.parametrize("size", [WIDE, NARROW, (320, 640)], ids=["wide", "phone", "small"])
def test_nothing_is_wider_than_the_screen(board, page, size):
    page.size(*size)
    secret = "a_secret_with_a_name_that_has_no_place_to_break_a_line_" * 3
    board.client.secret_create(secret, "eA==")
    board.client.volume_create("v" * 64)
    mount = {"volume": "v", "path": "/srv"}
    app = {"app": shell(TALKS), "secrets": [{"name": secret, "target": "/x"}], "mounts": [mount]}
    volumes = [{"name": "v", "kind": "named", "volume": "v" * 64}]
    apps = {"a-rather-long-name-of-an-app": app}
    uuid = board.run(apps, name="a-pod-with-quite-a-long-name", net="default", volumes=volumes)
    has(page, "a-pod-with-quite-a-long-name")
    lists = ("#/images", "#/networks", "#/volumes", "#/secrets", "#/events")
    for where in ("#/pods", f"#/pod/{uuid}", *lists):
        show(page, where)
        page.wait("document.querySelectorAll('main td').length > 0")
        assert page.run(TOO_WIDE) == [], where


def test_a_viewer(board, page):
    board.run(TALKS, name="web")
    page.open("about:blank")
    page.call("Network.clearBrowserCookies")
    visit(board, page, "viewer")
    has(page, "1 running")
    assert page.run("document.querySelectorAll('main button').length") == 0
    page.run("document.querySelector('main td a').click()")
    has(page, "Facts")
    assert page.run("document.querySelector('.log')") is None


def test_kurmad_goes_and_comes(make_board, chromium):
    """The page says that the connection is lost, and goes on with the next kurmad."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    board = make_board(listen=f"127.0.0.1:{port}")
    chromium.open("about:blank")
    chromium.call("Network.clearBrowserCookies")
    visit(board, chromium, "admin")
    uuid = board.run(TALKS, name="web")
    has(chromium, "1 running")
    assert board.daemon.end() == 0
    chromium.wait("document.querySelector('#link').dataset.state === 'lost'")
    board.daemon.__init__(board.house)
    board.house.reopen()
    board.client.rm(uuid, force=True)
    chromium.wait("document.querySelector('#link').dataset.state === 'live'")
    has(chromium, "There are no pods yet.")
    chromium.problems.clear()  # of the connection that was lost


def test_without_a_token(board, chromium):
    chromium.open("about:blank")
    chromium.call("Network.clearBrowserCookies")
    chromium.open(board.address)
    has(chromium, "This page needs a token")
    chromium.run(f"document.querySelector('#token').value = {json.dumps(board.token('admin'))}")
    chromium.run("document.querySelector('form button').click()")
    until(lambda: "There are no pods yet." in chromium.text(), chromium.text)
    chromium.run("document.querySelector('.tools form button').click()")
    has(chromium, "This page needs a token")
    chromium.open("about:blank")
    chromium.problems.clear()  # the browser reports status 401
