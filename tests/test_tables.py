"""Selection tables: parsing, policies, files, agreement of the ranks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from harness import Ranks
from hypothesis import given
from hypothesis import strategies as st

import llcoll
from llcoll import _C, tables

ROWS: tables.Rows = {
    "float32": [[64, "one_shot_ll"], [1000, "two_shot_ll128"], [4096, "torch"], [None, "torch"]],
    "float": [[64, "one_shot_sentinel"], [None, "one_shot_flag"]],
    "integer": [[50, "one_shot_ll"], [2000, "one_shot_sentinel"], [None, "two_shot_flag"]],
}
HOST = tables.Machine(tables.Key(tables._cpu_name(), "-", 2, "host"), 0)
SHARED = tables.Machine(tables.Key("NVIDIA H200", "580", 4, "shared-gpu"), 90)
OWN = tables.Machine(tables.Key("NVIDIA GB200", "580", 4, "gpu-per-rank"), 100)
CHANGES_BITS = {"torch", "two_shot_ll128", "two_shot_multimem"}
DTYPES = ("float32", "float64", "bfloat16", "float8_e5m2", "int8", "int64", "bool")


def entry_for(machine: tables.Machine, rows: tables.Rows = ROWS) -> dict[str, Any]:
    return {"key": asdict(machine.key), "rows": {"fast": rows, "invariant": rows}}


def test_rows_serve_up_to_their_size() -> None:
    text = tables.text_of(ROWS)
    for num_bytes, algorithm in ((1, "one_shot_ll"), (64, "one_shot_ll"), (1001, "torch")):
        assert HOST.select(text, "fast", num_bytes, "float32") == algorithm
    assert HOST.select(text, "fast", 64, "bfloat16") == "one_shot_sentinel"
    assert HOST.select(text, "fast", 65, "bfloat16") == "one_shot_flag"
    assert HOST.select(text, "fast", 1 << 50, "bfloat16") == "one_shot_flag"


def test_what_cannot_serve_is_replaced_by_the_next_larger_row() -> None:
    assert HOST.select(tables.text_of(ROWS), "fast", 1999, "int32") == "two_shot_flag"


@pytest.mark.parametrize("machine", [HOST, SHARED, OWN], ids=["cpu", "loopback", "own"])
@pytest.mark.parametrize("text", ["", tables.text_of(ROWS)], ids=["built-in", "table"])
@pytest.mark.parametrize("op", _C.reduce_ops())
def test_invariant_keeps_bits(machine: tables.Machine, text: str, op: str) -> None:
    for dtype in DTYPES:
        for shift in range(40):
            picked = machine.select(text, "invariant", 1 << shift, dtype, op)
            assert picked not in CHANGES_BITS and picked != "auto"
            assert _C.usable(picked, dtype, op, "invariant", False)
            assert _C.usable(
                machine.select(text, "fast", 1 << shift, dtype, op), dtype, op, "fast", 0
            )


def test_ll128_needs_leave_beyond_float32() -> None:
    def allowed(dtype: str, policy: str, low_precision: bool) -> bool:
        picked = _C.select(
            "float32: * two_shot_ll128; float: * two_shot_ll128; integer: * one_shot_ll",
            *(True, False, 90, 4, policy, low_precision, 4096, dtype, "sum"),
        )
        return picked == "two_shot_ll128"

    assert allowed("float32", "fast", False)
    assert allowed("bfloat16", "fast", True) and allowed("float16", "fast", True)
    assert not allowed("float64", "fast", True)
    assert not allowed("float32", "invariant", True)
    assert not allowed("bfloat16", "invariant", True)
    assert not allowed("bfloat16", "fast", False)


def test_every_machine_has_a_table_with_provenance() -> None:
    for cuda, shares in ((False, False), (True, False), (True, True)):
        for capability in (80, 90, 100, 120):
            for world_size in range(1, 73):
                name, why, rows = _C.default_table(cuda, shares, capability, world_size)
                assert name and len(why) > 40
                assert _C.select(
                    rows, cuda, shares, capability, world_size, "fast", False, 8, "bool", "max"
                )
    assert "Blackwell" in OWN.default()[0] and "GB200" in OWN.default()[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("float32: * torch", "class 'float' is missing"),
        ("float32: 64 one_shot_ll", "must be *"),
        ("float32: 64 one_shot_ll, 64 torch, * torch", "do not grow"),
        ("float32: * auto", "says auto"),
        ("float32: * fastest", "unknown algorithm 'fastest'"),
        ("float32: 64k one_shot_ll, * torch", "'64k' is not a size"),
        ("floats: * torch", "unknown class of types 'floats'"),
        ("float32: * torch; float32: * torch", "comes twice"),
        ("float32: " + "".join(f"{i} torch, " for i in range(1, 17)) + "* torch", "at most 16"),
    ],
)
def test_bad_tables(text: str, words: str) -> None:
    with pytest.raises(llcoll.LlcollError, match="selection table|algorithm") as caught:
        HOST.select(text, "fast", 1, "float32")
    assert words in str(caught.value)


UNUSABLE = ("auto", "two_shot_ll128", "two_shot_multimem", "leaders", "lanes")
ROW_LISTS = st.lists(
    st.tuples(
        st.integers(1, 1 << 40),
        st.sampled_from([a for a in _C.algorithms() if a not in UNUSABLE]),
    ),
    max_size=15,
    unique_by=lambda row: row[0],
).map(sorted)


@given(rows=ROW_LISTS, num_bytes=st.integers(1, 1 << 41))
def test_select_is_the_first_row_that_is_large_enough(rows: list[Any], num_bytes: int) -> None:
    cells = [[size, algorithm] for size, algorithm in rows] + [[None, "one_shot_flag"]]
    text = tables.text_of({"float32": cells, "float": cells, "integer": cells})
    want = next((a for size, a in rows if num_bytes <= size), "one_shot_flag")
    assert HOST.select(text, "fast", num_bytes, "float32") == want


def test_store_keeps_other_entries(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "tuning.json"
    tables.store(path, entry_for(SHARED))
    tables.store(path, entry_for(HOST))
    other = {**ROWS, "integer": [[None, "two_shot_flag"]]}
    tables.store(path, entry_for(SHARED, other))
    data = tables.read(path)
    assert data["version"] == 1 and len(data["entries"]) == 2
    found = tables.find(data, SHARED.key)
    assert found is not None and found["rows"]["fast"] == other
    assert tables.find(data, OWN.key) is None
    assert [p.name for p in path.parent.iterdir()] == ["tuning.json"]


def init_with(path: Path | str, other: Path | str | None = None, **env: str) -> list[Any]:
    files = [str(path), str(path if other is None else other)]
    rank_env = {rank: {"LLCOLL_TUNING_FILE": name, **env} for rank, name in enumerate(files)}
    with Ranks(2, init=False, rank_env=rank_env) as ranks:
        return ranks.run("jobs_tables", "init")


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.json"
    tables.store(path, entry_for(HOST))
    return path


def test_init_reads_the_named_file(table_file: Path) -> None:
    values = [outcome.value for outcome in init_with(table_file)]
    assert values[0] == values[1]
    assert values[0]["source"] == str(table_file)
    assert (values[0]["8"], values[0]["100"]) == ("one_shot_ll", "two_shot_flag")


def test_init_reads_the_cache_unless_told_not_to(tmp_path: Path) -> None:
    tables.store(tmp_path / "llcoll" / "tuning.json", entry_for(HOST))
    cached = init_with("", XDG_CACHE_HOME=str(tmp_path))
    assert [o.value["100"] for o in cached] == ["two_shot_flag"] * 2
    none = init_with(tables.NO_FILE, XDG_CACHE_HOME=str(tmp_path))
    assert [o.value["source"] for o in none] == ["built in"] * 2
    assert none[0].value["100"] == "one_shot_flag"


def test_ranks_with_different_tables_fail_alike(table_file: Path) -> None:
    outcomes = init_with(table_file, tables.NO_FILE)
    assert [o.error[0] for o in outcomes] == ["LlcollError"] * 2
    assert outcomes[0].text == outcomes[1].text
    assert "disagree on the tuning table" in outcomes[0].text
    assert str(table_file) in outcomes[0].text


def test_caches_that_differ_are_not_used(tmp_path: Path) -> None:
    tables.store(tmp_path / "llcoll" / "tuning.json", entry_for(HOST))
    rank_env = {
        0: {"LLCOLL_TUNING_FILE": "", "XDG_CACHE_HOME": str(tmp_path)},
        1: {"LLCOLL_TUNING_FILE": "", "XDG_CACHE_HOME": str(tmp_path / "empty")},
    }
    with Ranks(2, init=False, rank_env=rank_env) as ranks:
        values = ranks.results("jobs_tables", "init")
        assert [value["source"] for value in values] == ["built in"] * 2
        assert "cached tuning tables differ" in ranks.log(0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "Expecting"),
        ('{"version": 2, "entries": []}', "version is 2"),
        ('{"version": 1}', "no list of entries"),
        (json.dumps({"version": 1, "entries": [{"key": asdict(HOST.key)}]}), "KeyError"),
        (
            json.dumps({"version": 1, "entries": [entry_for(HOST, {**ROWS, "float": []})]}),
            "last row",
        ),
    ],
)
def test_a_bad_named_file_is_an_error_on_every_rank(
    tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "tuning.json"
    if content is not None:
        path.write_text(content)
    outcomes = init_with(path)
    assert [o.error[0] for o in outcomes] == ["LlcollError"] * 2
    for outcome in outcomes:
        assert words in outcome.text and str(path) in outcome.text


def test_a_table_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    tables.store(path, entry_for(SHARED))
    outcomes = init_with(path)
    assert [o.value["source"] for o in outcomes] == ["built in"] * 2
