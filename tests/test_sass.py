"""The latency gate (.ci/sass.py): its parsing and judgement, and this build's kernels."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

GATE = Path(__file__).resolve().parents[1] / ".ci" / "sass.py"
spec = importlib.util.spec_from_file_location("sass_gate", GATE)
assert spec is not None and spec.loader is not None
sass: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sass)

LISTING = """
	code for sm_90
		Function : _Zfirst
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED"
        /*0000*/                   LDC R1, c[0x0][0x28]; /* 0x00000a00ff017b82 */
                                   /* 0x000fe20000000800 */
        /*0010*/     @!P0 LDG.E.128.STRONG.SYS R4, desc[UR4][R2.64]; /* 0x0000000402047981 */
        /*0020*/                   STL [R1], R4; /* 0x0000000401007387 */
        /*0030*/      @P1 ST.E.128.STRONG.SYS desc[UR4][R2.64], R4; /* 0x0000000402007985 */
        /*0040*/                   EXIT; /* 0x000000000000794d */
        /*0050*/                   BRA 0x50; /* 0xfffffffffffc7947 */
        /*0060*/                   NOP; /* 0x0000000000007918 */
		Function : _Zsecond
        /*0000*/                   LDG.E R0, desc[UR4][R2.64]; /* 0x0000000402007981 */
        /*0010*/                   EXIT; /* 0x000000000000794d */
"""


def test_instructions_are_counted_without_padding() -> None:
    assert sass.instructions(LISTING) == {
        "_Zfirst": {"instructions": 5, "loads_128": 1, "stores_128": 1, "spills": 1},
        "_Zsecond": {"instructions": 2, "loads_128": 0, "stores_128": 0, "spills": 0},
    }


def test_only_the_small_message_kernels_are_compared() -> None:
    names = [
        "_ZN6llcoll17all_reduce_kernelINS_8portable2LlELb0ENS1_8BFloat16ELi2ENS1_5SumOpELb1EEEvNS_"
        "10KernelArgsE",
        "_ZN6llcoll17all_reduce_kernelINS_8portable2LlELb0ENS1_8BFloat16ELi2ENS1_5SumOpELb0EEEvNS_"
        "10KernelArgsE",
    ]
    usage = "".join(f" Function {name}:\n  REG:29 STACK:8 SHARED:0 LOCAL:0\n" for name in names)
    found = sass.kernels(usage)
    if not found:
        pytest.skip("no c++filt (binutils)")
    (short,) = found
    assert short == "all_reduce_kernel<Ll, false, BFloat16, 2, SumOp, true>"
    assert found[short] == (names[0], {"registers": 29, "stack": 8})


BASE = {
    "instructions": 200,
    "registers": 30,
    "stack": 0,
    "spills": 0,
    "loads_128": 4,
    "stores_128": 2,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"instructions": 210}, []),
        ({"instructions": 211}, ["instructions 200 -> 211"]),
        ({"registers": 33}, ["registers 30 -> 33"]),
        ({"spills": 1, "stack": 8}, ["spills 0 -> 1", "stack 0 -> 8"]),
        ({"stores_128": 1}, ["stores_128 2 -> 1"]),
        ({"loads_128": 5, "registers": 20}, []),
    ],
)
def test_what_counts_as_worse(change: dict[str, int], words: list[str]) -> None:
    worse, notes = sass.compare({"k": BASE}, {"k": {**BASE, **change}})
    assert worse == [f"k: {word}" for word in words] and notes == []


def test_better_and_missing_kernels_are_named() -> None:
    worse, notes = sass.compare(
        {"k": BASE, "old": BASE}, {"k": {**BASE, "instructions": 150}, "new": BASE}
    )
    assert worse == ["new: not recorded", "old: gone"] and notes == ["k: instructions 200 -> 150"]


def test_a_missing_library_is_skipped_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sass.main(["--library", str(tmp_path / "none.so")]) == sass.SKIPPED
    assert "SKIPPED: no none.so: llcoll was built without CUDA" in capsys.readouterr().out


def test_recorded_kernels_do_not_spill_at_2_and_4_ranks() -> None:
    data = json.loads(sass.RECORDED.read_text())
    assert data["version"] == 1 and len(data["kernels"]) >= 24
    for name, figures in data["kernels"].items():
        assert figures["loads_128"] > 0 and figures["stores_128"] > 0, name
        if ", 8, " not in name:
            assert figures["spills"] == 0 and figures["stack"] == 0, name


def test_this_build(capsys: pytest.CaptureFixture[str]) -> None:
    status = sass.main([])
    text = capsys.readouterr().out
    if status == sass.SKIPPED:
        pytest.skip(text.strip())
    assert status == 0, text
