"""Interface names and their templates (W5)."""

import os
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.errors import NetworkError
from kurma_core.networking.interfaces import assign, check_name, render

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


def acceptable_to_the_kernel(name: str) -> bool:
    """As ``dev_valid_name`` of the kernel, written apart from the code under test."""
    raw = os.fsencode(name)
    return (
        0 < len(raw) < 16 and name not in (".", "..") and not any(c in b"/:" or bytes([c]).isspace() for c in raw)
    )


@pytest.mark.parametrize(
    ("template", "name"),
    [("eth0", "eth0"), ("eth{{num}}", "eth0"), ("eth{{ num }}", "eth0"), ("veth+{{shortuuid}}", "veth+146d7cef"),
     ("{{num}}-{{num}}", "0-0"), ("a}}b", "a}}b")],
)  # fmt: skip
def test_templates(template, name):
    assert render(template, (), UUID, "net") == name


def test_numbers_count_up():
    taken = []
    for _ in range(12):
        taken.append(render("eth{{num}}", taken, UUID, "net"))
    assert taken == [f"eth{n}" for n in range(12)]


def test_random_is_random_and_as_long_as_asked():
    names = {render("r{{random 10}}", (), UUID, "net") for _ in range(50)}
    assert len(names) == 50
    assert {len(name) for name in names} == {11}


def test_random_avoids_collisions():
    taken = []
    for _ in range(20):
        taken.append(render("{{random 1}}", taken, UUID, "net"))
    assert len(set(taken)) == 20


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("abcdefghijklmnop", "it has 16 bytes, 1 to 15 are allowed"),
        ("{{uuid}}", "it has 36 bytes"),
        ("ethernet{{shortuuid}}", "it has 16 bytes"),
        ("ééééééééé", "it has 18 bytes"),
        ("", "it has 0 bytes"),
        ("a/b", "only visible ASCII"),
        ("a b", "only visible ASCII"),
        ("eth%d", "only visible ASCII"),
        ("é", "only visible ASCII"),
        ("..", "the name is reserved"),
        ("all", "the name is reserved"),
        ("eth{{nmu}}", "unknown part"),
        ("eth{{num", "unknown part"),
        ("eth{{random}}", "unknown part"),
        ("eth{{random 0}}", "unknown part"),
        ("eth{{random 99}}", "unknown part"),
    ],
)
def test_impossible_names_say_why(template, why):
    with pytest.raises(NetworkError) as caught:
        render(template, (), UUID, "mynet")
    assert why in caught.value.message
    assert "mynet" in caught.value.message


def test_a_taken_name_is_refused():
    with pytest.raises(NetworkError, match="has an interface eth0 already"):
        render("eth0", ("eth0",), UUID, "mynet")


def test_plain_names_are_given_before_templates():
    wanted = [("lo", "lo"), ("a", "eth{{num}}"), ("b", "eth0"), ("c", "eth{{num}}")]
    assert assign(wanted, UUID) == ("lo", "eth1", "eth0", "eth2")


_PIECES = st.lists(
    st.one_of(
        st.sampled_from(["{{num}}", "{{shortuuid}}", "{{uuid}}", "{{random 3}}", "{{random 15}}", "eth", "veth+"]),
        st.text(max_size=4),
    ),
    max_size=3,
).map("".join)


@given(st.lists(_PIECES, max_size=8), st.uuids())
def test_names_are_unique_and_possible_or_refused(templates, pod: uuid.UUID):
    try:
        names = assign([(f"n{i}", template) for i, template in enumerate(templates)], str(pod))
    except NetworkError:
        return
    # A network that names its own interface gets none from here.
    assert [not name for name in names] == [not template for template in templates]
    given = [name for name in names if name]
    assert len(given) == len(set(given))
    assert all(acceptable_to_the_kernel(name) for name in given)


@given(st.text(max_size=20))
def test_what_is_accepted_the_kernel_takes(name):
    try:
        check_name(name, "net")
    except NetworkError:
        return
    assert acceptable_to_the_kernel(name)
