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
    with pytest.raises(NetworkError, match="already has an interface eth0"):
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


#: Templates without chance in them. Of plain names each stands once.
_SURE = st.sampled_from(["eth{{num}}", "net{{num}}", "{{num}}-{{shortuuid}}", "a{{num}}b{{num}}"])
_PLAIN = st.from_regex(r"[a-z][a-z0-9.+_-]{0,14}", fullmatch=True).filter(
    lambda name: name not in ("all", "default")
)
_UUIDS = st.uuids().map(str)


def wanted(texts):
    return [(f"n{index}", text) for index, text in enumerate(texts)]


@given(st.lists(_SURE, max_size=14), st.lists(_PLAIN, unique=True, max_size=4), _UUIDS, st.randoms())
def test_what_is_possible_is_not_refused(templates, plain, pod, order):
    """Any number of numbered names find one, whatever names stand among them; each plain one is given as it is."""
    texts = [*templates, *plain]
    order.shuffle(texts)
    names = assign(wanted(texts), pod)
    assert len(set(names)) == len(texts)
    assert all(acceptable_to_the_kernel(name) for name in names)
    assert [name for name, text in zip(names, texts, strict=True) if text in plain] == [
        t for t in texts if t in plain
    ]


@given(st.lists(_SURE | _PLAIN, max_size=12, unique=True), _UUIDS)
def test_the_same_networks_get_the_same_names(texts, pod):
    assert assign(wanted(texts), pod) == assign(wanted(texts), pod)


@given(st.lists(_SURE, max_size=12), _UUIDS, _SURE | st.just("x{{random 4}}"))
def test_a_network_more_at_the_end_renames_none_before_it(texts, pod, last):
    before = assign(wanted(texts), pod)
    assert assign(wanted([*texts, last]), pod)[:-1] == before


@given(st.lists(_SURE, max_size=12), _UUIDS, _PLAIN)
def test_a_name_asked_for_moves_only_who_would_have_had_it(texts, pod, asked):
    """Whoever has filled a template with that name goes one on, and those of its kind after it."""
    before = assign(wanted(texts), pod)
    after = assign(wanted([*texts, asked]), pod)
    assert after[-1] == asked
    if asked not in before:
        assert after[:-1] == before


def test_numbers_pass_by_what_was_asked_for():
    texts = ["eth{{num}}", "eth1", "eth{{num}}", "eth0", "eth{{num}}"]
    assert assign(wanted(texts), UUID) == ("eth2", "eth1", "eth3", "eth0", "eth4")


def test_numbers_end_where_names_do():
    texts = ["abcdefghijklmn{{num}}"] * 10
    assert assign(wanted(texts), UUID)[-1] == "abcdefghijklmn9"
    with pytest.raises(NetworkError, match="'abcdefghijklmn10': it has 16 bytes"):
        assign(wanted([*texts, texts[0]]), UUID)


def test_chance_that_finds_no_free_name_says_so():
    with pytest.raises(NetworkError, match=r"the pod already has an interface \w"):
        assign(wanted(["{{random 1}}"] * 33), UUID)


@given(st.text(max_size=20))
def test_what_is_accepted_the_kernel_takes(name):
    try:
        check_name(name, "net")
    except NetworkError:
        return
    assert acceptable_to_the_kernel(name)
