"""The early draft's own examples, made valid JSON where they are not."""

from __future__ import annotations

import copy

APP = {
    "acVersion": "0.1.0",
    "acKind": "AppManifest",
    "name": "example.com/reduce-worker-1.0.0",
    "os": "linux",
    "arch": "amd64",
    "exec": ["/usr/bin/reduce-worker"],
    "user": "100",
    "group": "300",
    "eventHandlers": [
        {"name": "pre-start", "exec": ["/usr/bin/data-downloader"]},
        {"name": "post-stop", "exec": ["/usr/bin/deregister-worker"]},
    ],
    "environment": {"REDUCE_WORKER_DEBUG": "true"},
    "mountPoints": [{"name": "database", "path": "/var/lib/db", "readOnly": False}],
    "ports": [{"name": "health", "protocol": "tcp", "port": 4000, "socketActivated": True}],
    "isolators": [
        {"name": "private-network", "val": "true"},
        {"name": "cpu/shares", "val": "20"},
        {"name": "memory/limit", "val": "1G"},
        {"name": "capabilities/bounding-set", "val": "CAP_NET_BIND_SERVICE CAP_SYS_ADMIN"},
    ],
    "annotations": {
        "created": "2014-10-27T19:32:27.67021798Z",
        "authors": "Carly Container <carly@example.com>, Nat Network <nat@example.com>",
        "homepage": "https://example.com",
        "documentation": "https://example.com/docs",
    },
}
FILESET = {
    "acVersion": "0.1.0",
    "acKind": "FilesetManifest",
    "name": "example.com/reduce-worker-1.0.0",
    "dependencies": [
        {"hash": "sha256-" + "0123456789abcdef" * 4, "name": "example.com/reduce-worker-base-1.0.0", "root": "/"},
        {"hash": "sha256-277205b3ae3eb3a8", "name": "example.com/reduce-worker-libs-1.0.0", "root": "/opt/libs"},
        {"name": "example.com/trusted-certificate-authority", "root": "/etc/ca"},
    ],
    "files": ["/etc/ca/example.com/crt", "/usr/bin/map-reduce-worker"],
}
POD = {
    "acVersion": "0.1.0",
    "acKind": "ContainerRuntimeManifest",
    "uuid": "6733C088-A507-4694-AABF-EDBE4FC5266F",
    "apps": [
        {
            "app": "example.com/reduce-worker-1.0.0",
            "imageID": "sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac",
        },
        {
            "app": "example.com/worker-backup-1.0.0",
            "imageID": "sha256-3e86b59982e49066c5d813af1c2e2579cbf573de",
            "isolators": [{"name": "memory/limit", "val": "1G"}],
            "annotations": {"foo": "baz"},
        },
        {
            "app": "example.com/reduce-worker-register-1.0.0",
            "imageID": "sha256-86298e1fdb95ec9a45b5935504e26ec29b8feffa",
        },
    ],
    "volumes": [
        {"kind": "host", "source": "/opt/tenant1/work", "readOnly": True, "fulfills": ["work"]},
        {"kind": "empty", "fulfills": ["buildOutput"]},
    ],
    "isolators": [{"name": "memory/limit", "value": "4G"}],
    "annotations": {"ip-address": "10.1.2.3"},
}
MISSING = object()


def changed(document: dict, *where: object, to: object = MISSING) -> dict:
    """``document`` with the value at ``where`` replaced, or taken away."""
    result = copy.deepcopy(document)
    place = result
    for step in where[:-1]:
        place = place[step]
    if to is MISSING:
        del place[where[-1]]
    else:
        place[where[-1]] = to
    return result
