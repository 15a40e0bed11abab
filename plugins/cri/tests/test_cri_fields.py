"""Each field of each request has a decision (C8)."""

import grpc
import pytest
from kurma_cri.fields import DECISIONS, HONOURED, REFUSED, check_request
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import RpcError


def messages(descriptor, found):
    """The messages that a request holds, those for Windows left out."""
    if descriptor.full_name in found or "Windows" in descriptor.name or descriptor.GetOptions().map_entry:
        return
    found[descriptor.full_name] = descriptor
    for field in descriptor.fields:
        if field.message_type is not None:
            messages(field.message_type, found)


def requests():
    found = {}
    for service in cri.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            messages(method.input_type, found)
    return found.values()


FIELDS = [f"{message.name}.{field.name}" for message in requests() for field in message.fields]


def test_every_field_has_a_decision_and_every_decision_a_field():
    assert sorted(set(FIELDS) - DECISIONS.keys()) == []
    assert sorted(DECISIONS.keys() - set(FIELDS)) == []


def test_a_refusal_names_the_field(monkeypatch):
    monkeypatch.setitem(DECISIONS, "Mount.readonly", REFUSED)
    config = cri.ContainerConfig(mounts=[cri.Mount(host_path="/a"), cri.Mount(readonly=True)])
    with pytest.raises(RpcError, match=r"^mounts\.readonly ") as caught:
        check_request(config)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    monkeypatch.setitem(DECISIONS, "Mount.readonly", HONOURED)
    check_request(config)
