"""Names of images, completed (C19)."""

import grpc
import pytest
from kurma_cri.references import parse
from kurma_cri.rpc import RpcError

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1.25", "docker.io/library/nginx:1.25"),
        ("team/app", "docker.io/team/app:latest"),
        ("docker.io/nginx", "docker.io/library/nginx:latest"),
        ("registry-1.docker.io/library/nginx", "docker.io/library/nginx:latest"),
        ("localhost/a", "localhost/a:latest"),
        ("127.0.0.1:5000/a/b:v1", "127.0.0.1:5000/a/b:v1"),
        ("Quay.io/a__b/c-d:V1", "quay.io/a__b/c-d:V1"),
        (f"nginx@{DIGEST}", f"docker.io/library/nginx@{DIGEST}"),
        (f"nginx:1@{DIGEST}", f"docker.io/library/nginx@{DIGEST}"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
    ],
)
def test_a_name_is_completed(text, whole):
    assert str(parse(text)) == whole
    assert str(parse(whole)) == whole


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "a/", "Nginx", "a b", "nginx:", "nginx:-x", "nginx@", "nginx@sha256:12", "a//b", "../etc"),
        *("a" * 64, DIGEST, "docker://nginx", "a\n", "-a", "a:b/c@d"),
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(RpcError, match="is not the name of an image") as caught:
        parse(text)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
