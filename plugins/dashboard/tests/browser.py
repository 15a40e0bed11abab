"""Headless Chromium, driven by its DevTools protocol over a WebSocket."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator

from websockets.sync.client import connect

from tests.kit.waiting import until

PROGRAM = "chromium-headless-shell"
WIDE, NARROW = (1280, 900), (390, 844)
_FLAGS = (
    "--no-sandbox",  # it has none as root; it loads the test's own page alone
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Browser:
    """One page of one browser.

    :ivar problems: uncaught exceptions, messages of errors, and violations of the page's policy.
    """

    def __init__(self, socket):
        self._numbers = itertools.count(1)
        self._socket = socket
        self._session = None
        self.problems = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            self._look(answer)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _look(self, message):
        method, found = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.problems.append(f"{found['entry']['text']} {found['entry'].get('url', '')}".strip())

    # -- doing --

    def size(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, colours):
        """:param colours: ``light`` or ``dark``, as the system of the reader has it."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page; a promise is awaited."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, (script, done["exceptionDetails"])
        return done["result"].get("value")

    def wait(self, script):
        """Until that expression is true."""

        def true():
            # A page that is being left has no context for a moment.
            with contextlib.suppress(AssertionError):
                return self.run(script)

        return until(true, lambda: f"{script}: {self.text()[:2000]} {self.problems}")

    def text(self):
        return self.run("document.body ? document.body.innerText : ''")

    def press(self, key, text=""):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        text = {"Enter": "\r", " ": " "}.get(key, text)
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def focused(self):
        """Name and text of the element with the focus."""
        return self.run(
            "(e => `${e.tagName} ${e.getAttribute('aria-label') || e.textContent}`)(document.activeElement)"
        )

    def screenshot(self, path, *, whole=False):
        done = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(done["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="kurma-browser-") as directory:
        environment = {**os.environ, "HOME": directory}
        process = subprocess.Popen(
            [PROGRAM, *_FLAGS, f"--user-data-dir={directory}/profile"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,  # a script starts it
        )
        try:
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"ws://\S+", line):
                    break
            else:
                raise AssertionError(f"{PROGRAM} does not come up: {said}")
            with connect(found[0], max_size=None, compression=None, ping_interval=None) as connected:
                yield Browser(connected)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
            process.stderr.close()
