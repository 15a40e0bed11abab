"""JSON Schemas (draft 2020-12) of what goes over the API, by name: ``docs/json.md`` in a form that programs read.

A value's keys are all there: what has no value is null. Keys are only ever added, so none is forbidden; but in
what a caller sends, where one that the daemon does not know would be a wish that nobody hears. A test keeps them
in step with the page, and with what the values' ``to_json`` write.
"""

from __future__ import annotations

from typing import Any

from kurma_core.api.host import KINDS, SUBJECTS
from kurma_core.models.network import PROTOCOLS
from kurma_core.models.pod import ETC_CONTENTS

Json = Any

# --- the words -------------------------------------------------------------------------------------------------

ANY: Json = {}
TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}
SIZE: Json = {"type": "integer", "minimum": 0}
NUMBER: Json = {"type": "number"}
FLAG: Json = {"type": "boolean"}
TIME: Json = {"type": "string", "description": "RFC 3339, UTC"}
OBJECT: Json = {"type": "object"}
NOTHING: Json = {"type": "null"}


def _maybe(schema: Json) -> Json:
    """That, or null."""
    if "$ref" in schema or "enum" in schema:
        return {"anyOf": [schema, NOTHING]}
    return {**schema, "type": [schema["type"], "null"]}


def _aim(kind: str) -> Json:
    """Of what the configuration has the daemon see to; ``kind`` is what it is when it is there."""
    return _object(
        name=TEXT,
        **{kind: _maybe(TEXT)},
        state=_word("waiting", "present", "failed"),
        error=_maybe(TEXT),
        next=_maybe(TEXT),
    )


def _word(*words: str) -> Json:
    return {"type": "string", "enum": list(words)}


#: Of a pod.
_STATE = _word("preparing", "prepared", "starting", "running", "stopping", "stopped", "errored")


def _list(schema: Json) -> Json:
    return {"type": "array", "items": schema}


def _by_name(schema: Json) -> Json:
    return {"type": "object", "additionalProperties": schema}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**keys: Json) -> Json:
    """All of its keys are there."""
    return {"type": "object", "properties": keys, "required": list(keys)}


def _wish(*needed: str, **keys: Json) -> Json:
    """What a caller sends: what is left out, or null, is as usual. There are no other keys."""
    maybe = {name: schema if name in needed or schema == ANY else _maybe(schema) for name, schema in keys.items()}
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", "properties": maybe, **required, "additionalProperties": False}


def _and(name: str, **keys: Json) -> Json:
    """The same object with further keys."""
    return {"allOf": [_ref(name), _object(**keys)]}


# --- pods ------------------------------------------------------------------------------------------------------

_REASON = _maybe(_word("exited", "killed", "oom", "start-failed"))
_END: Json = {
    "exitCode": _maybe(WHOLE),
    "exitReason": _REASON,
    "signal": _maybe(WHOLE),
    "message": _maybe(TEXT),
    "startedAt": _maybe(TIME),
    "finishedAt": _maybe(TIME),
    "log": _maybe(TEXT),
}
_PORT = _object(hostPort=WHOLE, podPort=WHOLE, protocol=_word(*PROTOCOLS), hostIP=TEXT)
#: Whose content files below an app's /etc have.
_FILES = _by_name(_word(*ETC_CONTENTS))
_FIGURES: dict[str, Json] = {
    "memory": _maybe(SIZE),
    "memoryReclaimable": _maybe(SIZE),
    "memoryLimit": _maybe(SIZE),
    "cpu": _maybe(NUMBER),
    "pids": _maybe(SIZE),
    "pidsLimit": _maybe(SIZE),
    "blockRead": _maybe(SIZE),
    "blockWritten": _maybe(SIZE),
}
_PAIR = _wish("name", name=TEXT, value=ANY)
_NETWORK_WISH = _wish("name", name=TEXT, interface=TEXT, ips=_list(TEXT), mac=TEXT, optional=FLAG)

_PODS: dict[str, Json] = {
    "Execution": _object(instance=WHOLE, run=WHOLE, **_END),
    "AppStatus": _object(
        pid=_maybe(WHOLE),
        exited=FLAG,
        **_END,
        logDropped=SIZE,
        instance=_maybe(WHOLE),
        run=WHOLE,
        restarts=WHOLE,
        restarting=FLAG,
        ready=_maybe(FLAG),
        statusText=_maybe(TEXT),
        earlier=_list(_ref("Execution")),
        files=_FILES,
    ),
    "Attachment": _object(
        network=TEXT,
        driver=TEXT,
        interface=TEXT,
        config=OBJECT,
        request=_object(name=TEXT, interface=_maybe(TEXT), ips=_list(TEXT), mac=_maybe(TEXT), optional=FLAG),
        ports=_list(_PORT),
        capabilities=OBJECT,
        names=FLAG,
        addresses=_list(TEXT),
        result=_maybe(
            _object(
                addresses=_list(_object(address=TEXT, gateway=_maybe(TEXT))),
                routes=_list(_object(dst=TEXT, gw=_maybe(TEXT))),
                nameservers=_list(TEXT),
                search=_list(TEXT),
                options=_list(TEXT),
                raw=ANY,
            )
        ),
    ),
    "IsolatorReport": _object(
        name=TEXT,
        app=_maybe(TEXT),
        outcome=_word("enforced", "modified", "ignored"),
        note=TEXT,
        default=FLAG,
        value=ANY,
        amounts=TEXT,
    ),
    "Pod": _object(
        uuid=TEXT,
        name=TEXT,
        state=_STATE,
        reason=_maybe(TEXT),
        exitCode=_maybe(WHOLE),
        createdAt=TIME,
        startedAt=_maybe(TIME),
        finishedAt=_maybe(TIME),
        owner=_maybe(WHOLE),
        stager=TEXT,
        stagerPid=_maybe(WHOLE),
        renderer=TEXT,
        networkNamespace=_maybe(TEXT),
        userNamespace=_maybe(_object(first=WHOLE, count=WHOLE)),
        metadata=_maybe(_object(address=TEXT, port=WHOLE, tokenFile=TEXT)),
        restart=_object(policy=_word("never", "on-failure", "always"), count=WHOLE, next=_maybe(TIME)),
        apps=_by_name(_ref("AppStatus")),
        images=_by_name(TEXT),
        networks=_list(_ref("Attachment")),
        isolators=_list(_ref("IsolatorReport")),
        notes=_list(TEXT),
        manifest=OBJECT,
    ),
    "Pods": _list(_ref("Pod")),
    "Listing": _list(
        _object(
            uuid=TEXT,
            name=TEXT,
            state=_STATE,
            createdAt=TIME,
            apps=_list(TEXT),
            networks=_list(_object(network=TEXT, interface=TEXT, addresses=_list(TEXT))),
        )
    ),
    "PodRequest": _wish(
        "pod",
        pod={"type": "object", "description": "a pod manifest of App Container, or a template of one"},
        uuid=TEXT,
        name=TEXT,
        stager=TEXT,
        renderer=TEXT,
        interactive=TEXT,
        terminal=TEXT,
        hostname=TEXT,
        userns=TEXT,
        verify=FLAG,
        ephemeral=FLAG,
        strictIsolators=FLAG,
        strictVolumes=FLAG,
        allowVolumeLinks=FLAG,
        apps=_by_name(
            _wish(
                arguments=_list(TEXT),
                exec=_list(TEXT),
                user=TEXT,
                group=TEXT,
                workingDirectory=TEXT,
                environment=_list(_wish("name", "value", name=TEXT, value=TEXT)),
                isolators=_list(_PAIR),
            )
        ),
        networks=_list(_NETWORK_WISH),
        ports=_list(
            _wish("hostPort", "podPort", hostPort=WHOLE, podPort=WHOLE, protocol=_word(*PROTOCOLS), hostIP=TEXT)
        ),
        pull=_word("new", "always", "never"),
        insecure=_list(TEXT),
        dns=_wish(nameservers=_list(TEXT), search=_list(TEXT), options=_list(TEXT)),
        hosts=_list(_wish("address", address=TEXT, names=_list(TEXT))),
        isolators=_list(_PAIR),
        grants=_list(TEXT),
    ),
    "App": _object(
        name=TEXT,
        image=_maybe(TEXT),
        imageName=_maybe(TEXT),
        state=_word("created", "starting", "running", "restarting", "exited", "killed", "oom", "start-failed"),
        pid=_maybe(WHOLE),
        exited=FLAG,
        **_END,
        logDropped=SIZE,
        instance=_maybe(WHOLE),
        restarts=WHOLE,
        ready=_maybe(FLAG),
        statusText=_maybe(TEXT),
        files=_FILES,
    ),
    "Apps": _list(_ref("App")),
    "Collected": _object(lines=_list(TEXT), failed=FLAG),
    "Usages": _list(
        _object(
            uuid=TEXT,
            name=TEXT,
            clock={"type": "number", "description": "seconds, by a clock that nobody sets"},
            **_FIGURES,
            networkReceived=_maybe(SIZE),
            networkSent=_maybe(SIZE),
            apps=_by_name(_object(**_FIGURES)),
        )
    ),
    "Processes": _list(
        _object(
            pid=WHOLE,
            innerPid=WHOLE,
            parent=WHOLE,
            app=_maybe(TEXT),
            uid=_maybe(WHOLE),
            user=_maybe(TEXT),
            state=TEXT,
            threads=WHOLE,
            cpu=NUMBER,
            elapsed=NUMBER,
            memory=SIZE,
            name=TEXT,
            command=_list(TEXT),
        )
    ),
    "LogLine": _object(
        app=TEXT,
        at={"type": "string", "description": "RFC 3339 with nanoseconds"},
        stream=_word("stdout", "stderr"),
        partial={"type": "boolean", "description": "the line goes on in the next of that app and stream"},
        text={"type": "string", "description": "bytes that are no UTF-8 are U+DC80 and on, as Python has them"},
    ),
}

# --- images ----------------------------------------------------------------------------------------------------

_TRUST = _word("built", "signed", "digest", "local", "unverified")

_IMAGES: dict[str, Json] = {
    "Command": _wish(
        "exec",
        exec=_list(TEXT),
        app=TEXT,
        user=TEXT,
        group=TEXT,
        environment=_list(_wish("name", "value", name=TEXT, value=TEXT)),
        workingDirectory=TEXT,
        tty=FLAG,
    ),
    "Exit": _object(exitCode=WHOLE),
    "Image": _object(
        id=TEXT,
        earlyId=_maybe(TEXT),
        name=TEXT,
        version=_maybe(TEXT),
        labels=_by_name(TEXT),
        size=SIZE,
        trust=_TRUST,
        fetchedAt=_maybe(TIME),
        lastUsed=_maybe(TIME),
        layers=_list(TEXT),
        provenance=_list(
            _object(
                locator=TEXT,
                url=_maybe(TEXT),
                fetchedAt=TIME,
                trust=_TRUST,
                digest=_maybe(TEXT),
                fingerprint=_maybe(TEXT),
                encrypted=FLAG,
                insecure=_list(TEXT),
            )
        ),
    ),
    "Images": _list(_ref("Image")),
    "ImagePage": _and("Image", lapse=_maybe(_word("unknown", "revoked")), manifest=OBJECT),
    "ImageSigned": _object(
        file=_maybe(TEXT),
        id=TEXT,
        name=TEXT,
        signature=_maybe(TEXT),
        over=_maybe(_word("archive", "tar")),
        fingerprint=_maybe(TEXT),
        users=_list(TEXT),
    ),
    "ImageVerified": _and("ImageSigned", trust=_TRUST, trees=WHOLE),
    "ImageRendered": _object(id=TEXT, layers=_list(_object(id=TEXT, path=TEXT))),
    "ImageGc": _object(
        dryRun=FLAG,
        freed=SIZE,
        removed=_list(
            _object(kind=_word("image", "tree", "layer", "archive", "download", "leftover"), name=TEXT, size=SIZE)
        ),
    ),
    "TrustedKey": _object(
        scope=_word("root", "prefix", "host"),
        prefix=_maybe(TEXT),
        fingerprint=_maybe(TEXT),
        users=_list(TEXT),
        created=_maybe(TIME),
        expires=_maybe(TIME),
        state=_word(
            "trusted", "masked", "replaced", "mask", "expired", "revoked", "unusable", "unlisted", "refused"
        ),
        path=TEXT,
        problem=_maybe(TEXT),
    ),
    "TrustedKeys": _list(_ref("TrustedKey")),
    "ImageWish": _wish("locator", locator=TEXT, pull=_word("new", "always", "never"), insecure=_list(TEXT)),
    "ImageChecked": _and("ImageVerified", image=_ref("Image"), lapse=_maybe(_word("unknown", "revoked"))),
    "ImageId": _object(id=TEXT),
    "Directory": _wish("directory", directory=TEXT),
    "Key": _object(
        fingerprint=TEXT,
        users=_list(TEXT),
        created=TIME,
        expires=_maybe(TIME),
        state=_word("valid", "expired", "revoked", "unusable"),
        key={"type": "string", "description": "armored"},
        source=TEXT,
    ),
    "Keys": _list(_ref("Key")),
    "KeySearch": _wish(address=TEXT, name=TEXT, insecure=_list(TEXT)),
    "KeyWish": _wish("key", key=TEXT, source=TEXT, prefix=TEXT),
    "TrustChange": _object(
        action=_word("added", "refreshed", "unmasked", "removed", "masked"),
        fingerprint=TEXT,
        path=TEXT,
        still=_list(_object(prefix=_maybe(TEXT), path=TEXT)),
    ),
}

# --- the host --------------------------------------------------------------------------------------------------

_HOST: dict[str, Json] = {
    "Stager": _object(name=TEXT, kind=_word("plugin", "image"), image=_maybe(TEXT), default=FLAG, config=OBJECT),
    "Stagers": _list(_ref("Stager")),
    "StagerCheckLine": _object(name=TEXT, about=TEXT, outcome=_word("ok", "fail", "skipped"), detail=_maybe(TEXT)),
    "Network": _object(
        name=TEXT,
        driver=_maybe(TEXT),
        source=TEXT,
        interface=_maybe(TEXT),
        default=FLAG,
        optional=FLAG,
        names=FLAG,
        config=OBJECT,
        problem=_maybe(TEXT),
    ),
    "Networks": _list(_ref("Network")),
    "NetworkFinding": _object(kind=TEXT, network=_maybe(TEXT), pod=_maybe(TEXT), what=TEXT, why=TEXT, mended=FLAG),
    "NetworkFindings": _list(_ref("NetworkFinding")),
    "NetworkCheck": _wish(names=_list(TEXT), repair=FLAG),
    "HostImage": _object(id=TEXT, path=TEXT, manifest=OBJECT, fingerprint=_maybe(TEXT)),
    "StagerWish": _wish("image", image=TEXT),
    "StagerCheck": _list(_ref("StagerCheckLine")),
    "Isolator": _object(
        name=TEXT,
        plugin=TEXT,
        scopes=_list(_word("app", "pod")),
        value=TEXT,
        example=ANY,
        outcome=_word("enforced", "modified", "ignored", "refused"),
        note=TEXT,
        default=ANY,
    ),
    "Isolators": _list(_ref("Isolator")),
    "Plugin": _object(kind=TEXT, name=TEXT, distribution=TEXT, version=TEXT, status=TEXT, reason=TEXT),
    "Plugins": _list(_ref("Plugin")),
    "PluginPage": _and(
        "Plugin",
        settings=OBJECT,
        options=_list(
            _object(name=TEXT, type=TEXT, default=ANY, help=TEXT, least=_maybe(NUMBER), most=_maybe(NUMBER))
        ),
    ),
    "Info": _object(
        version=TEXT,
        kernel=TEXT,
        machine=TEXT,
        stateDirectory=TEXT,
        configuration=_list(TEXT),
        cgroups=_by_name(WHOLE),
        renderer=TEXT,
        stager=TEXT,
        requiredIsolators=_list(TEXT),
        notRequiredIsolators=_list(TEXT),
        pods=_maybe(WHOLE),
        daemon=_maybe(
            _object(
                pid=WHOLE,
                recovered=FLAG,
                initialPods=_list(_aim("pod")),
                prefetchImages=_list(_aim("image")),
            )
        ),
        plugins=_by_name(_list(TEXT)),
    ),
    "Version": _object(version=TEXT),
    "Health": _object(status=_word("ok", "failing"), version=TEXT, problems=_list(TEXT)),
}

# --- the API itself --------------------------------------------------------------------------------------------

_ERROR = _object(kind=TEXT, message=TEXT, hint=_maybe(TEXT), exitCode=WHOLE, data=OBJECT)

_API: dict[str, Json] = {
    "Error": _object(error=_ERROR),
    "Event": _object(
        seq={"type": "integer", "minimum": 1, "description": "greater than of every event before it"},
        at=TIME,
        subject=_word(*SUBJECTS),
        kind=_word(*dict.fromkeys(kind for kinds in KINDS.values() for kind in kinds)),
        id=_maybe(TEXT),
        name=TEXT,
        detail=OBJECT,
    ),
    "Answer": _wish(passphrase={"type": "string", "description": "base64; null: there is none"}),
    "Message": {
        "description": "one line of an answer that tells what happens on the way; the last is result or error",
        **_object(**{"is": _word("note", "problem", "progress", "ask", "line", "result", "error")}),
    },
    "OpenAPI": {"type": "object", "required": ["openapi", "info", "paths"]},
}

SCHEMAS: dict[str, Json] = {**_PODS, **_IMAGES, **_HOST, **_API}

__all__ = ["SCHEMAS"]
