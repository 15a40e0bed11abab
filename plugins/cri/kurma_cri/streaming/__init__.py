"""Serves the streams of exec, attach and port-forward by HTTP upgrades: SPDY/3.1 and WebSocket.

:mod:`.server` accepts connections and checks tokens, :mod:`.upgrade` reads requests and chooses versions,
:mod:`.sessions` and :mod:`.port_forward` connect the streams of a connection to a :class:`.requests.Backend`,
and :mod:`.backend` implements that by Kurma's client API.
"""
