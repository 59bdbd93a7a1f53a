"""The checker of the PTX memory model: classic shapes, then the accesses of llcoll's protocols.

docs/memory-model.md has the same table in words; test_docs_table keeps the two together.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ptx_model import A, B, F, K, R, Thread, V, W, allows

FENCES = {"none": [], "acq_rel": [F()], "sc": [F("sc")]}


def two(first: list, second: list) -> list[Thread]:
    return [Thread(first, gpu=0), Thread(second, gpu=1)]


# ---- classic shapes: each with no fence, fence.acq_rel, fence.sc


@pytest.mark.parametrize(("fence", "allowed"), [("none", True), ("acq_rel", False), ("sc", False)])
def test_mp(fence: str, allowed: bool) -> None:
    f = FENCES[fence]
    shape = two([W("x", 1), *f, W("y", 1)], [R("y", "r0"), *f, R("x", "r1")])
    assert allows(shape, r0=1, r1=0) is allowed
    assert allows(shape, r0=1, r1=1) and allows(shape, r0=0, r1=0)


@pytest.mark.parametrize(
    ("writer", "reader", "allowed"),
    [
        ("release", "acquire", False),
        ("release", "relaxed", True),
        ("relaxed", "acquire", True),
    ],
)
def test_mp_release_acquire(writer: str, reader: str, allowed: bool) -> None:
    shape = two(
        [W("x", 1, "weak"), W("y", 1, writer)],
        [R("y", "r0", reader), R("x", "r1", "weak")],
    )
    assert allows(shape, r0=1, r1=0) is allowed


@pytest.mark.parametrize(("scope", "allowed"), [("cta", True), ("gpu", True), ("sys", False)])
def test_mp_scopes(scope: str, allowed: bool) -> None:
    """Across GPUs only .sys will do; each side counts."""
    for writer, reader in ((scope, "sys"), ("sys", scope)):
        shape = two(
            [W("x", 1), F(scope=writer), W("y", 1)], [R("y", "r0"), F(scope=reader), R("x", "r1")]
        )
        assert allows(shape, r0=1, r1=0) is allowed


def test_mp_in_one_cta() -> None:
    one = [W("x", 1), F(scope="cta"), W("y", 1, scope="cta")]
    other = [R("y", "r0", scope="cta"), F(scope="cta"), R("x", "r1")]
    assert not allows([Thread(one), Thread(other)], r0=1, r1=0)
    assert allows([Thread(one), Thread(other, cta=1)], r0=1, r1=0)


@pytest.mark.parametrize(("fence", "allowed"), [("none", True), ("acq_rel", True), ("sc", False)])
def test_sb(fence: str, allowed: bool) -> None:
    f = FENCES[fence]
    shape = two([W("x", 1), *f, R("y", "r0")], [W("y", 1), *f, R("x", "r1")])
    assert allows(shape, r0=0, r1=0) is allowed


@pytest.mark.parametrize(("fence", "allowed"), [("none", True), ("acq_rel", False), ("sc", False)])
def test_lb(fence: str, allowed: bool) -> None:
    f = FENCES[fence]
    shape = two([R("x", "r0"), *f, W("y", 1)], [R("y", "r1"), *f, W("x", 1)])
    assert allows(shape, r0=1, r1=1) is allowed
    assert not allows(shape, controlled=True, r0=1, r1=1)


def test_lb_with_data_is_out_of_thin_air() -> None:
    shape = two([R("x", "r0"), W("y", "r0")], [R("y", "r1"), W("x", "r1")])
    assert not allows(shape, r0=1)
    mixed = two([R("x", "r0"), W("y", "r0")], [R("y", "r1"), W("x", 1)])
    assert allows(mixed, r0=1, r1=1)


@pytest.mark.parametrize(("fence", "allowed"), [("none", True), ("acq_rel", True), ("sc", False)])
def test_iriw(fence: str, allowed: bool) -> None:
    f = FENCES[fence]
    shape = [
        Thread([W("x", 1)], gpu=0),
        Thread([W("y", 1)], gpu=1),
        Thread([R("x", "r0"), *f, R("y", "r1")], gpu=2),
        Thread([R("y", "r2"), *f, R("x", "r3")], gpu=3),
    ]
    assert allows(shape, r0=1, r1=0, r2=1, r3=0) is allowed


@pytest.mark.parametrize(("order", "allowed"), [("relaxed", False), ("weak", True)])
def test_corr(order: str, allowed: bool) -> None:
    shape = two([W("x", 1)], [R("x", "r0", order), R("x", "r1", order)])
    assert allows(shape, r0=1, r1=0) is allowed


@pytest.mark.parametrize(("fence", "allowed"), [("none", True), ("acq_rel", True), ("sc", False)])
def test_2_plus_2w(fence: str, allowed: bool) -> None:
    f = FENCES[fence]
    shape = two([W("x", 1), *f, W("y", 2)], [W("y", 1), *f, W("x", 2)])
    assert allows(shape, mem_x=1, mem_y=1) is allowed


def test_wrc_is_cumulative() -> None:
    shape = [
        Thread([W("x", 1)], gpu=0),
        Thread([R("x", "r0"), F(), W("y", 1)], gpu=1),
        Thread([R("y", "r1"), F(), R("x", "r2")], gpu=2),
    ]
    assert not allows(shape, r0=1, r1=1, r2=0)


def test_atomics_lose_nothing() -> None:
    shape = two([A("x", 1, "r0")], [A("x", 1, "r1")])
    assert not allows(shape, mem_x=1)
    assert allows(shape, mem_x=2, r0=0, r1=1) and allows(shape, mem_x=2, r0=1, r1=0)


def test_vector_is_words_and_b128_is_one() -> None:
    writer, reader = W(("d", "f"), (1, 1)), R(("d", "f"), ("data", "flag"))
    assert not allows(two([writer], [reader]), data=0, flag=1)
    assert not allows(two([writer], [reader]), data=1, flag=0)
    for w, r in ((V(writer), [reader]), ([writer], V(reader)), (V(writer), V(reader))):
        assert allows(two(w, r), data=0, flag=1)


# ---- the protocols. `bad` must not happen. "model": PTX forbids it. "hardware": PTX allows it, the
# named premise forbids it. "broken": it can happen, so the code must not be written so.

e, later = 1, 2
PACKET = ("data", "flag")


class Premise:
    CONTROL = "stores do not overtake the loads of their own thread (a branch stands between)"
    LINE = "a 128-byte line is added and read as one"


def line_parts(writer: int) -> list:
    """One contribution to a line: its count, then an element."""
    return [A("count", 1, f"c{writer}"), A("part", 10, f"p{writer}")]


CLEARS_ELSEWHERE = [W("slot", 0), F(), B("cta")]

LITMUS: dict[str, tuple[str, str, list[Thread], dict[str, int]]] = {
    "LL: packet by st/ld.relaxed.sys.b128": (
        "model",
        "",
        two([W(PACKET, (7, e))], [R(PACKET, ("data", "flag"))]),
        {"flag": e, "data": 0},
    ),
    "LL: packet by .v2.b64": (
        "broken",
        "",
        two(V(W(PACKET, (7, e))), V(R(PACKET, ("data", "flag")))),
        {"flag": e, "data": 0},
    ),
    "LL: the slot's next packet waits for the answer, in one launch": (
        "hardware",
        Premise.CONTROL,
        two([R("slot", "got"), W("answer", 1)], [R("answer", "seen"), W("slot", later)]),
        {"got": later, "seen": 1},
    ),
    "LL: the same, over kernel boundaries": (
        "model",
        "",
        two(
            [R("slot", "got"), K("a"), W("answer", 1)],
            [R("answer", "seen"), K("b"), W("slot", later)],
        ),
        {"got": later, "seen": 1},
    ),
    "LL: the same, read by another member in front of the barrier": (
        "hardware",
        Premise.CONTROL,
        [
            Thread([R("slot", "got"), B("cta")], gpu=0),
            Thread([B("cta"), W("answer", 1)], gpu=0),
            Thread([R("answer", "seen"), W("slot", later)], gpu=1),
        ],
        {"got": later, "seen": 1},
    ),
    "Sentinel: each word tells for itself": (
        "model",
        "",
        two([W("slot", 7)], [R("slot", "r0"), R("slot", "r1")]),
        {"r0": 7, "r1": 0},
    ),
    "Sentinel: clear, then the peer's next data, over kernel boundaries": (
        "model",
        "",
        two([W("slot", 9), K("a"), W("next", 1)], [R("next", "seen"), K("b"), W("slot", 7)]),
        {"seen": 1, "mem_slot": 9},
    ),
    "Sentinel: the same in one launch, a fence on both sides": (
        "model",
        "",
        two([W("slot", 9), F(), W("next", 1)], [R("next", "seen"), F(), W("slot", 7)]),
        {"seen": 1, "mem_slot": 9},
    ),
    "Sentinel: the same, a fence on the clearer's side only": (
        "broken",
        "",
        two([W("slot", 9), F(), W("next", 1)], [R("next", "seen"), W("slot", 7)]),
        {"seen": 1, "mem_slot": 9},
    ),
    "Sentinel: the same, a fence on the peer's side only": (
        "broken",
        "",
        two([W("slot", 9), W("next", 1)], [R("next", "seen"), F(), W("slot", 7)]),
        {"seen": 1, "mem_slot": 9},
    ),
    "Sentinel: another member clears; fence, barrier, fence, send": (
        "model",
        "",
        [
            Thread([W("slot", 9), F(), B("cta"), F()], gpu=0),
            Thread([F(), B("cta"), F(), W("next", 1)], gpu=0),
            Thread([R("next", "seen"), F(), W("slot", 7)], gpu=1),
        ],
        {"seen": 1, "mem_slot": 9},
    ),
    "Sentinel: another member clears; fence, barrier, send": (
        "broken",
        "",
        [
            Thread([W("slot", 9), F(), B("cta")], gpu=0),
            Thread([F(), B("cta"), W("next", 1)], gpu=0),
            Thread([R("next", "seen"), F(), W("slot", 7)], gpu=1),
        ],
        {"seen": 1, "mem_slot": 9},
    ),
    "Sentinel: another member polled; fence, barrier, fence, write": (
        "model",
        "",
        [
            Thread([W("slot", 9), F(), W("next", 1)], gpu=0),
            Thread([R("next", "seen"), F(), B("cta"), F()], gpu=1),
            Thread([F(), B("cta"), F(), W("slot", 7)], gpu=1),
        ],
        {"seen": 1, "mem_slot": 9},
    ),
    "Sentinel: another member polled; barrier, fence, write": (
        "broken",
        "",
        [
            Thread([W("slot", 9), F(), W("next", 1)], gpu=0),
            Thread([R("next", "seen"), B("cta"), F()], gpu=1),
            Thread([B("cta"), F(), W("slot", 7)], gpu=1),
        ],
        {"seen": 1, "mem_slot": 9},
    ),
    "Flag: data, barrier, fence, ready word | ready word, fence, barrier, data": (
        "model",
        "",
        [
            Thread([W("data", 7, "weak"), B("a")], gpu=0),
            Thread([B("a"), F(), W(("zero", "ready"), (0, e))], gpu=0),
            Thread([R(("zero", "ready"), ("none", "ready")), F(), B("b")], gpu=1),
            Thread([B("b"), R("data", "got", "weak")], gpu=1),
        ],
        {"ready": e, "got": 0},
    ),
    "Flag: no fence before the ready word": (
        "broken",
        "",
        two(
            [W("data", 7, "weak"), W("ready", e)],
            [R("ready", "ready"), F(), R("data", "got", "weak")],
        ),
        {"ready": e, "got": 0},
    ),
    "Flag: no fence after the ready word": (
        "broken",
        "",
        two(
            [W("data", 7, "weak"), F(), W("ready", e)],
            [R("ready", "ready"), R("data", "got", "weak")],
        ),
        {"ready": e, "got": 0},
    ),
    "Flag: no barrier before the ready word": (
        "broken",
        "",
        [
            Thread([W("data", 7, "weak")], gpu=0),
            Thread([F(), W("ready", e)], gpu=0),
            Thread([R("ready", "ready"), F(), R("data", "got", "weak")], gpu=1),
        ],
        {"ready": e, "got": 0},
    ),
    "Flag: fences of .gpu scope between GPUs": (
        "broken",
        "",
        two(
            [W("data", 7, "weak"), F(scope="gpu"), W("ready", e)],
            [R("ready", "ready"), F(scope="gpu"), R("data", "got", "weak")],
        ),
        {"ready": e, "got": 0},
    ),
    "Flag: staging is written again once the peer's next ready word has come": (
        "model",
        "",
        [
            Thread([R("data", "got", "weak"), B("a")], gpu=0),
            Thread([B("a"), F(), W("ready", e)], gpu=0),
            Thread([R("ready", "seen"), F(), B("b")], gpu=1),
            Thread([B("b"), W("data", 9, "weak")], gpu=1),
        ],
        {"seen": e, "got": 9},
    ),
    "Zero copy: the input is overwritten behind `done`, by the next kernel": (
        "model",
        "",
        [
            Thread([R("input", "got", "weak"), B("a")], gpu=0),
            Thread([B("a"), F(), W("done", e)], gpu=0),
            Thread([R("done", "seen"), K("b"), W("input", 9, "weak")], gpu=1),
        ],
        {"seen": e, "got": 9},
    ),
    "Zero copy: the input is overwritten without `done`": (
        "broken",
        "",
        two([R("input", "got", "weak")], [K("b"), W("input", 9, "weak")]),
        {"got": 9},
    ),
    "Hello: said behind the boundary, heard before the next call's sends": (
        "model",
        "",
        two(
            [R("slot", "got"), K("a"), W("hello", e)],
            [R("hello", "seen"), K("b"), W("slot", later)],
        ),
        {"seen": e, "got": later},
    ),
    "Hello: >= on a word that only grows": (
        "model",
        "",
        two([W("hello", 1), W("hello", 2)], [R("hello", "r0"), R("hello", "r1")]),
        {"r0": 2, "r1": 1},
    ),
    "LL128: the count of a line stands for all of it": (
        "hardware",
        Premise.LINE,
        [
            Thread(line_parts(0), gpu=0),
            Thread([R("count", "count"), R("part", "part")], gpu=1),
        ],
        {"count": 1, "part": 0},
    ),
    "LL128: additions of two ranks are not lost": (
        "model",
        "",
        two([A("count", 1, "c0")], [A("count", 1, "c1")]),
        {"mem_count": 1},
    ),
    "Failure: a record for the host is whole once `valid` is": (
        "model",
        "",
        two(
            [W("culprit", 3, "weak"), F(), W("valid", 1)],
            [R("valid", "valid"), F(), R("culprit", "who", "weak")],
        ),
        {"valid": 1, "who": 0},
    ),
    "Dependent launch: the launch before, then griddepcontrol.wait": (
        "model",
        "",
        [
            Thread([W("record", 5, "weak"), K("end")], gpu=0),
            Thread([K("end"), R("record", "got", "weak")], gpu=0, cta=1),
        ],
        {"got": 0},
    ),
    "Dependent launch: a read before the wait": (
        "broken",
        "",
        [
            Thread([W("record", 5, "weak"), K("end")], gpu=0),
            Thread([R("record", "got", "weak"), K("end")], gpu=0, cta=1),
        ],
        {"got": 0},
    ),
}


@pytest.mark.parametrize("name", LITMUS)
def test_protocol(name: str) -> None:
    verdict, premise, threads, bad = LITMUS[name]
    allowed = allows(threads, **bad)
    if verdict == "model":
        assert not allowed
    else:
        assert allowed
    if premise == Premise.CONTROL:
        assert not allows(threads, controlled=True, **bad)
    if premise == Premise.LINE:
        # One operation for the line: writes of both words, for the addition is one there.
        whole = two([W(("count", "part"), (1, 10))], [R(("count", "part"), ("count", "part"))])
        assert not allows(whole, **bad)


def test_docs_table() -> None:
    page = (Path(__file__).parent.parent / "docs" / "memory-model.md").read_text()
    for name, (verdict, _, _, _) in LITMUS.items():
        assert f"| {name.replace('|', '/')} | {verdict} |" in page, name
