"""Posts each event of a pod to an address, as JSON."""

from __future__ import annotations

import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kurma_core.errors import ConfigError, HostError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, HostCheck, Option
from kurma_core.hookspecs.service import ServiceHost

#: Seconds for one post; kurmad waits longer than that for the end of a service.
TIMEOUT = 3.0


class Webhook:
    def __init__(self, context: DriverContext) -> None:
        self._last = Path(context.state_dir, "last-event")
        self._url = ""
        self.reload(context.config)

    @hookimpl
    def reload(self, config: Mapping[str, Any]) -> bool:
        if not config["url"].startswith(("http://", "https://")):
            raise ConfigError(f"webhook: url is {config['url']!r}", hint="https://…")
        self._url = config["url"]
        return True

    @hookimpl
    def serve(self, host: ServiceHost) -> None:
        if not self._last.exists():  # the first start: events from now on
            self._remember(max((event.seq for event in host.client.events()), default=0))
        # Events that happened while the service did not run come first.
        events = host.client.events(int(self._last.read_text()), follow=True, subject=("pod",))
        host.ready()
        for event in events:
            # If this fails, kurmad starts the service again after a pause, and the event comes again.
            self._post(event.to_json())
            self._remember(event.seq)

    def _post(self, event: Any) -> None:
        data = json.dumps(event).encode()
        request = urllib.request.Request(self._url, data, {"Content-Type": "application/json"})  # noqa: S310 (checked)
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            error.close()
            raise HostError(f"cannot post to {self._url}: it answered {error.code}") from None
        except OSError as error:
            raise HostError(f"cannot post to {self._url}: {error}") from None

    def _remember(self, number: int) -> None:
        self._last.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._last.with_suffix(".new")
        new.write_text(str(number))
        os.replace(new, self._last)


@hookimpl
def kurma_checks(context: DriverContext) -> list[HostCheck]:
    """For ``kurma info --check``."""
    address = urlsplit(context.config["url"])
    try:
        port = address.port or {"https": 443}.get(address.scheme, 80)
        socket.create_connection((address.hostname or "", port), TIMEOUT).close()
    except (OSError, ValueError) as error:
        return [HostCheck("address", False, str(error), "set url in the section of webhook")]
    return [HostCheck("address", True, f"{address.hostname} can be reached")]


@hookimpl
def kurma_service() -> Driver:
    return Driver(Webhook, options=(Option("url", str, "", "gets a POST request for each event"),))
