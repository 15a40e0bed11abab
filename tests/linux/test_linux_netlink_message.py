import struct

from kurma_core.linux.netlink import (
    ACK,
    HEADER,
    REQUEST,
    attribute,
    each_attribute,
    integer,
    message,
    nest,
    parse_attributes,
    split,
    string,
)


def test_attributes_are_padded_to_four_bytes_and_read_back():
    body = string(3, "eth0") + integer(4, 1500) + nest(18, string(1, "veth"))
    assert len(body) == 12 + 8 + 16
    assert body[:12] == struct.pack("=HH", 9, 3) + b"eth0\0" + bytes(3)
    found = parse_attributes(b"head" + body, 4)
    assert found[3] == b"eth0\0"
    assert struct.unpack("=I", found[4]) == (1500,)
    assert parse_attributes(found[18]) == {1: b"veth\0"}


def test_items_of_a_list_have_one_number():
    assert list(each_attribute(attribute(1, b"a") + attribute(1, b"bcdef"))) == [(1, b"a"), (1, b"bcdef")]


def test_what_is_torn_ends_the_list():
    assert parse_attributes(attribute(1, b"a") + struct.pack("=HH", 0, 7) + bytes(8)) == {1: b"a"}
    assert parse_attributes(b"\0\0") == {}


def test_messages_of_one_datagram():
    one, two = message(16, REQUEST | ACK, 7, b"abcde"), message(3, 0, 8, b"")
    data = one + bytes(-len(one) % 4) + two
    found = [(data[start:end], kind, flags, number) for start, end, kind, flags, number in split(data)]
    assert found == [(b"abcde", 16, REQUEST | ACK, 7), (b"", 3, 0, 8)]
    assert len(one) == HEADER.size + 5
