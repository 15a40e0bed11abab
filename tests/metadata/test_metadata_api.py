"""What is where, and of what type: both interfaces, asked as apps ask (M2, M3)."""

import base64
import hashlib
import hmac
import json

import pytest

from kurma_core.metadata.api import Api, merge
from kurma_core.metadata.http import HttpError, RequestReader
from tests.metadata.metadata_fakes import (
    EARLY_BYTES,
    EARLY_ID,
    EARLY_IMAGE,
    IMAGE,
    IMAGE_BYTES,
    KEYS,
    MANIFEST,
    OTHER,
    TOKEN,
    UUID,
    FakeFacts,
)

FLAVOUR = "Metadata-Flavor: AppContainer\r\n"
V1 = f"/{TOKEN}/acMetadata/v1"
JSON, ASCII, TEXT = "application/json", "text/plain; charset=us-ascii", "text/plain; charset=utf-8"


@pytest.fixture
def facts():
    return FakeFacts()


@pytest.fixture
def api(facts):
    return Api(TOKEN, facts, early=True)


def ask(api, path, *, method="GET", body=None, headers=""):
    """The response, or the status of what was not one."""
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    reader = RequestReader()
    reader.feed(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{headers}{length}\r\n".encode() + (body or b""))
    try:
        return api(reader.next())
    except HttpError as error:
        return error.status


def told(response):
    return response.status, response.content_type, response.body


def post(api, path, body, headers=""):
    return ask(api, path, method="POST", body=body, headers=headers)


def early(api, path, **options):
    return ask(api, f"/acMetadata/v1/{path}", headers=FLAVOUR, **options)


def test_the_late_documents(api):
    def of(path):
        return told(ask(api, f"{V1}/{path}"))

    assert of("pod/uuid") == (200, ASCII, UUID.encode())
    assert of("apps/web/image/id") == (200, ASCII, IMAGE.encode())
    assert of("apps/web/image/manifest") == (200, JSON, IMAGE_BYTES)
    status, kind, body = of("pod/manifest")
    assert (status, kind, json.loads(body)) == (200, JSON, MANIFEST)
    status, kind, body = of("pod/annotations")
    assert (status, kind, json.loads(body)) == (200, JSON, MANIFEST["annotations"])
    status, kind, body = of("apps/web/annotations")
    assert (status, kind) == (200, JSON)
    assert json.loads(body) == [
        {"name": "authors", "value": "A"},
        {"name": "homepage", "value": "http://pod/"},
        {"name": "example.com/level", "value": "1"},
        {"name": "new", "value": "n"},
    ]
    assert json.loads(of("apps/early/annotations")[2]) == []


def test_annotations_of_a_pod_that_has_none():
    """M2: the manifest says so as the answer for the annotations alone does."""
    facts = FakeFacts()
    facts.pod = {key: value for key, value in MANIFEST.items() if key != "annotations"}
    api = Api(TOKEN, facts, early=False)
    manifest, alone = (json.loads(ask(api, f"{V1}/pod/{what}").body) for what in ("manifest", "annotations"))
    assert manifest == {**facts.pod, "annotations": []}
    assert alone == []


def test_annotations_are_merged_in_place():
    image = [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]
    assert merge(image, [{"name": "c", "value": "3"}, {"name": "a", "value": "4"}]) == [
        {"name": "a", "value": "4"},
        {"name": "b", "value": "2"},
        {"name": "c", "value": "3"},
    ]
    assert merge(None, None) == []


def test_the_early_documents(api):
    import json

    def of(path):
        return told(early(api, path))

    assert of("container/uid") == (200, ASCII, UUID.encode())
    assert json.loads(of("container/manifest")[2]) == MANIFEST
    assert of("container/annotations/") == (200, TEXT, "ip-address\nexample.com/näme\n".encode())
    assert of("container/annotations/ip-address") == (200, TEXT, b"10.1.2.3")
    assert of("container/annotations/example.com/n%C3%A4me") == (200, TEXT, "ü".encode())
    assert of("apps/web/annotations/") == (200, TEXT, b"authors\nhomepage\nexample.com/level\nnew\n")
    assert of("apps/web/annotations/homepage") == (200, TEXT, b"http://pod/")
    assert of("apps/web/image/id") == (200, ASCII, IMAGE.encode())
    assert of("apps/web/image/manifest") == (200, JSON, IMAGE_BYTES)
    assert of("apps/early/image/id") == (200, ASCII, EARLY_ID.encode())
    assert of("apps/early/image/manifest") == (200, JSON, EARLY_BYTES)
    assert ask(api, f"{V1}/apps/early/image/id").body == EARLY_IMAGE.encode()


def test_the_early_interface_below_the_token(api):
    """An early image may have its address from its environment."""
    assert ask(api, f"{V1}/container/uid", headers=FLAVOUR).body == UUID.encode()
    assert ask(api, f"{V1}/apps/web/annotations/", headers=FLAVOUR).body.startswith(b"authors\n")
    assert ask(api, f"{V1}/apps/web/annotations", headers=FLAVOUR).content_type == JSON
    assert ask(api, f"{V1}/container/uid") == 403


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/", 401),
        ("//", 401),
        (f"/{TOKEN[:-1]}/acMetadata/v1/pod/uuid", 401),
        (f"/{TOKEN}0/acMetadata/v1/pod/uuid", 401),
        (f"/{TOKEN.upper()}/acMetadata/v1/pod/uuid", 401),
        (f"//{TOKEN}/acMetadata/v1/pod/uuid", 401),
        (f"/{UUID}/acMetadata/v1/pod/uuid", 401),
        (f"/{TOKEN}", 404),
        (f"/{TOKEN}/", 404),
        (f"/{TOKEN}/acMetadata/v2/pod/uuid", 404),
        (f"{V1}/pod", 404),
        (f"{V1}/pod/uuid/", 404),
        (f"{V1}/pod/uid", 404),
        (f"{V1}/pod/annotations/", 404),
        (f"{V1}/pod/annotations/ip-address", 404),
        (f"{V1}/pod/hmac", 404),
        (f"{V1}/pod/hmac/sign/", 404),
        (f"{V1}/apps", 404),
        (f"{V1}/apps/", 404),
        (f"{V1}/apps/none/image/id", 404),
        (f"{V1}/apps/web", 404),
        (f"{V1}/apps/web/image", 404),
        (f"{V1}/apps/../pod/uuid", 404),
        (f"{V1}/pod/%80", 400),
        ("/acMetadata/v1/container/uid", 403),
        ("/acMetadata/v1/pod/uuid", 403),
    ],
)
def test_what_is_not_there(api, path, wanted):
    assert ask(api, path) == wanted


def test_what_is_not_there_early(api):
    for path in ("pod/uuid", "container/annotations", "container/annotations/none", "container/uuid"):
        assert early(api, path) == 404


@pytest.mark.parametrize("value", ["", "Google", "appcontainer", "AppContainer/1", "AppContainer, AppContainer"])
def test_the_flavour_is_that_one(api, value):
    headers = f"Metadata-Flavor: {value}\r\n"
    for path in ("/acMetadata/v1/container/uid", f"{V1}/container/uid"):
        assert ask(api, path, headers=headers) == 403
    assert post(api, "/acMetadata/v1/container/hmac/sign", b"a", headers) == 403
    assert ask(api, "/acMetadata/v1/container/uid", headers="metadata-flavor:AppContainer \r\n").status == 200


def test_secrets_are_compared_in_constant_time(api, monkeypatch):
    """No guess is told by the time that its refusal takes (M1)."""
    compared = []

    def compare(given, own):
        compared.append((given, own))
        return given == own

    monkeypatch.setattr(hmac, "compare_digest", compare)
    guess = TOKEN[:-1] + "x"
    assert ask(api, f"/{guess}/acMetadata/v1/pod/uuid") == 401
    assert compared == [(guess.encode(), TOKEN.encode())]
    forged = b"A" * 64
    body = b"uuid=%s&content=a&signature=%s" % (UUID.encode(), base64.b64encode(forged))
    assert post(api, f"{V1}/pod/hmac/verify", body) == 403
    assert compared[2:] == [(forged, hmac.digest(KEYS[UUID], b"a", "sha512"))]


def test_without_the_early_interface_it_needs_a_token(facts):
    """A pod in the host's network: anybody on the host may connect (M3)."""
    api = Api(TOKEN, facts, early=False)
    assert early(api, "container/uid") == 401
    assert ask(api, f"{V1}/pod/uuid").body == UUID.encode()


def test_methods(api):
    assert ask(api, f"{V1}/pod/uuid", method="HEAD").status == 200
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert ask(api, f"{V1}/pod/uuid", method=method, body=b"") == 405
    assert post(api, f"{V1}/pod/uuid", b"") == 405
    assert ask(api, f"{V1}/pod/hmac/sign") == 405
    assert ask(api, f"{V1}/pod/hmac/sign", method="HEAD") == 405
    reader = RequestReader()
    reader.feed(f"GET {V1}/pod/hmac/sign HTTP/1.0\r\n\r\n".encode())
    request = reader.next()
    with pytest.raises(HttpError) as caught:
        api(request)
    assert caught.value.headers == (("Allow", "POST"),)


def signature(uuid, content, algorithm="sha512"):
    return base64.b64encode(hmac.new(KEYS[uuid], content, algorithm).digest())


def quoted(data):
    return b"".join(b"%%%02x" % byte for byte in data)


@pytest.mark.parametrize("content", [b"hello", b"", b"a b+c&d=e%", bytes(range(256))])
def test_sign(api, content):
    wanted = (200, ASCII, signature(UUID, content))
    assert told(post(api, f"{V1}/pod/hmac/sign", b"content=" + quoted(content))) == wanted
    assert hashlib.sha512().digest_size == len(base64.b64decode(wanted[2]))
    raw = told(early(api, "container/hmac/sign", method="POST", body=content))
    assert raw == (200, ASCII, signature(UUID, content, "sha256"))


def test_plus_is_a_space_in_a_form(api):
    assert post(api, f"{V1}/pod/hmac/sign", b"content=a+b%2B").body == signature(UUID, b"a b+")


def test_a_form_is_a_form(api):
    form = "Content-Type: application/x-www-form-urlencoded; charset=utf-8\r\n"
    assert post(api, f"{V1}/pod/hmac/sign", b"content=a", form).status == 200
    assert post(api, f"{V1}/pod/hmac/sign", b"content=a", "Content-Type: multipart/form-data\r\n") == 415
    assert post(api, f"{V1}/pod/hmac/sign", b"content=a", "Content-Type: application/json\r\n") == 415
    for body in (b"", b"contents=a", b"content=a&content=b", b"&".join(b"%d=" % n for n in range(20))):
        assert post(api, f"{V1}/pod/hmac/sign", body) == 400


@pytest.mark.parametrize("uuid", [UUID, OTHER])
def test_verify(api, uuid):
    def of(**changes):
        pairs = {"uuid": uuid.encode(), "content": b"text", "signature": signature(uuid, b"text"), **changes}
        body = b"&".join(
            name.encode() + b"=" + quoted(value) for name, value in pairs.items() if value is not None
        )
        found = post(api, f"{V1}/pod/hmac/verify", body)
        return found if isinstance(found, int) else found.status

    assert of() == 200
    assert of(uuid=uuid.upper().encode()) == 200
    assert of(content=b"text ") == 403
    assert of(signature=signature(uuid, b"text")[:-4]) == 403
    assert of(signature=signature(uuid, b"text", "sha256")) == 403
    assert of(signature=b"???") == 403
    assert of(signature=b"") == 403
    assert of(uuid=OTHER.encode() if uuid == UUID else UUID.encode()) == 403
    assert of(uuid=b"99999999-2222-4333-8444-000000000000") == 403
    for strange in (b"../../etc", b"../../..-/../-/../-/../-/../../../..", b"/" * 36, uuid.encode() + b"/..", b""):
        assert of(uuid=strange) == 403
    assert of(uuid=b"\xff") == 403
    assert of(content=None) == of(uuid=None) == of(signature=None) == 400


def test_a_signature_that_nobody_encoded(api):
    """A shell and busybox have no way to encode a plus sign."""
    inside = next(b"%d" % n for n in range(100) if b"+" in signature(UUID, b"%d" % n)[1:])
    first = next(b"%d" % n for n in range(10_000) if signature(UUID, b"%d" % n).startswith(b"+"))
    for content in (inside, first):
        for end in (b"", b"\n", b"\r\n"):
            body = b"uuid=%s&content=%s&signature=%s" % (UUID.encode(), content, signature(UUID, content) + end)
            assert post(api, f"{V1}/pod/hmac/verify", body).status == 200


def test_early_verify(api):
    own = signature(OTHER, b"text", "sha256")

    def of(**pairs):
        body = b"&".join(name.encode() + b"=" + quoted(value) for name, value in pairs.items())
        found = early(api, "container/hmac/verify", method="POST", body=body)
        return found if isinstance(found, int) else found.status

    assert of(uid=OTHER.encode(), content=b"text", signature=own) == 200
    assert of(uid=OTHER.encode(), content=b"other", signature=own) == 403
    assert of(uid=UUID.encode(), content=b"text", signature=own) == 403
    assert of(uid=OTHER.encode(), signature=own) == 400


def test_the_pod_may_change(api, facts):
    assert ask(api, f"{V1}/apps/new/image/id") == 404
    facts.pod = {**MANIFEST, "apps": [*MANIFEST["apps"], {"name": "new", "image": {"id": IMAGE}}]}
    assert ask(api, f"{V1}/apps/new/image/id") == 404, "what has not changed is not read again"
    facts.number += 1
    assert ask(api, f"{V1}/apps/new/image/id").body == IMAGE.encode()
    assert b'"new"' in ask(api, f"{V1}/pod/manifest").body


def test_images_are_not_read_again_and_again(api, facts):
    """A name that is not there, in a manifest of megabytes, would keep all other pods waiting for it (M4)."""
    for number in range(300):
        assert early(api, f"apps/web/annotations/none-{number}") == 404
        assert ask(api, f"{V1}/apps/web/image/{number}") == 404
        assert early(api, "apps/web/annotations/new").body == b"n"
    assert facts.images == 1
    facts.pod = {**MANIFEST, "apps": [{**MANIFEST["apps"][0], "annotations": [{"name": "new", "value": "m"}]}]}
    facts.number += 1
    assert early(api, "apps/web/annotations/new").body == b"m"
