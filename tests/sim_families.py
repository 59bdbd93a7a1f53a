"""Programs and planted mistakes for what has rules of its own: pulls with zero copy, LL128's lines,
LLBuffer, narrow flags, multicast. See sim_programs.
"""

from __future__ import annotations

from typing import Any

from sim_programs import (
    IN_CHUNKS,
    JUST_BELOW_2_31,
    JUST_BELOW_2_32,
    LONG_THEN_SHORT,
    SAME,
    TWO_THREADS,
    USER,
    Case,
    back_to_back,
    make_call,
    make_program,
    overlapping,
    sim,
)

PULLS = [name for name in sim.kernel_names() if "_pull" in name and "." not in name]
BUFFERS = [name for name in sim.kernel_names() if name.startswith("buffer") and "." not in name]
LINES = ["two_shot_ll128", "two_shot_ll128_wide"]

BOTH = [0, 1]
SYMMETRIC = {"symmetric_inputs": BOTH, "symmetric_outputs": BOTH}
# Where ranks' tensors lie: they need not agree.
PLACES: dict[str, dict[str, Any]] = {
    "inputs": {"symmetric_inputs": BOTH},
    "one input": {"symmetric_inputs": [0]},
    "outputs": {"symmetric_outputs": BOTH},
    "one input, other output": {"symmetric_inputs": [0], "symmetric_outputs": [1]},
    "all": SYMMETRIC,
    "in place": {"symmetric_inputs": BOTH, "in_place": True},
    "in place, one": {"symmetric_inputs": [1], "in_place": True},
}
# All narrow slots begin with the flag of call `LATE + 1`: by then each has been emptied.
LATE = 50
AGED = [*[{}] * LATE, {"numel": 16}]
BUFFER_LATE = 64
BUFFER_AGED = [*[{}] * BUFFER_LATE, {"numel": 16}]
ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]

LANES = {"threads": 16}  # eight to a line
LINES_SAME = [{"numel": 40}] * 5
LINES_IN_CHUNKS = [{"numel": 80, "max_chunk": 2}] * 3
BUFFER_IN_CHUNKS = [{"numel": 10, "max_chunk": 2}] * 3

MUTANTS = [
    # Pulls
    Case("zero copy: nobody leaves before each peer's done", "one_shot_pull",
         [{"symmetric_inputs": BOTH}] * 4, USER, "no_done"),
    Case("two-shot: nobody leaves before each peer's last word", "two_shot_pull",
         [SYMMETRIC] * 4, USER, "no_exit"),
    Case("no read of a peer's input before its ready word", "one_shot_pull",
         [{"symmetric_inputs": BOTH}] * 4, USER, "no_ready_wait"),
    Case("no write of a peer's output before its ready word", "two_shot_pull",
         [SYMMETRIC] * 4, USER, "no_ready_wait"),
    Case("the ready word says where the input lies: ranks may differ", "one_shot_pull",
         [{"symmetric_inputs": [0]}] * 4, USER, "source_not_said"),
    Case("two ready words in turn: a staged call, then a zero-copy one", "one_shot_pull",
         [{}, {"symmetric_inputs": BOTH}] * 3, USER, "one_ready_word"),
    Case("staging needs two buffers", "one_shot_pull", SAME, mutant="one_staging"),
    Case("in place: the result is written behind each peer's done", "one_shot_pull",
         [{"symmetric_inputs": BOTH, "in_place": True}] * 4, USER, "in_place_early"),
    Case("done stands behind every member's last pull", "one_shot_pull",
         [{"symmetric_inputs": BOTH, "numel": 40}] * 4, {**USER, **TWO_THREADS},
         "no_flush_barrier"),
    Case("the last word is acquired: outputs were written by peers", "two_shot_pull",
         [SYMMETRIC] * 4, USER, "no_acquire_after_flag"),
    Case("staged data are released before the ready word", "two_shot_pull", SAME,
         mutant="flag_before_data"),
    Case("a pull from a rank that gave up counts for nothing", "one_shot_pull",
         [{"symmetric_inputs": BOTH}] * 8, {**USER, "timeouts": 1}, "send_on_after_timeout"),
    # Multicast
    Case("a multicast packet arrives whole", "one_shot_ll_multicast", SAME,
         mutant="packet_in_two_words"),
    Case("the sender's own region is emptied too", "one_shot_sentinel_multicast.keeps_own",
         LONG_THEN_SHORT),
    # Narrow flags
    Case("a flag that comes again: every slot is emptied in turn", "one_shot_narrow", AGED,
         {"aged_epoch": LATE + 1}, "no_scrub"),
    Case("the same in an LLBuffer", "buffer_all_reduce_narrow", BUFFER_AGED,
         {"aged_epoch": BUFFER_LATE + 1}, "no_scrub"),
    # LL128
    Case("a line is added to and read as one", "two_shot_ll128", LINES_SAME, mutant="line_split"),
    Case("lines are zeroed", "two_shot_ll128", LINES_SAME, mutant="lines_not_cleared"),
    Case("those of the last epoch", "two_shot_ll128", LINES_SAME, mutant="lines_cleared_late"),
    Case("gathered results are emptied", "two_shot_ll128", LINES_SAME,
         mutant="results_not_cleared"),
    Case("the extent of both is remembered", "two_shot_ll128", LINES_SAME,
         mutant="extent_forgotten"),
    Case("a line is whole after N arrivals", "two_shot_ll128.early_count", LINES_SAME),
    Case("the displaced element goes back", "two_shot_ll128.displaced_lost", LINES_SAME),
    Case("another lane carries the displaced element: a barrier stands between",
         "two_shot_ll128_lanes", [{"numel": 39, "lines": 2}] * 4, LANES, "no_flush_barrier"),
    Case("lanes that are not together: parts, fence, count", "two_shot_ll128_lanes",
         [{"numel": 39, "lines": 2}] * 4, LANES, "fence_off"),
    Case("lines: a barrier ends each epoch", "two_shot_ll128_lanes",
         [{"numel": 100, "lines": 2, "max_chunk": 3}] * 2, LANES, "no_vote_barrier"),
    Case("lines: clears are fenced from the next sends", "two_shot_ll128", LINES_IN_CHUNKS,
         mutant="fence_off"),
    Case("lines: on the peer's side too", "two_shot_ll128", LINES_IN_CHUNKS,
         mutant="fence_release_only"),
    Case("lines: on the clearer's side too", "two_shot_ll128", LINES_IN_CHUNKS,
         mutant="fence_acquire_only"),
    Case("lines: a rank whose wait ended sends no more", "two_shot_ll128", [{}] * 6,
         {"timeouts": 1}, "send_on_after_timeout"),
    # LLBuffer
    Case("a buffer has two parts", "buffer_all_reduce_ll.one_part", SAME),
    Case("a slot that was received is reset", "buffer_all_reduce_sentinel.no_reset", SAME),
    Case("resets of the last epoch's part need a third", "buffer_reset_range.two_parts", SAME),
    Case("resets become visible by a fence, not by themselves", "buffer_all_reduce_sentinel",
         BUFFER_IN_CHUNKS, mutant="fence_off"),
    Case("which is a release of the resets", "buffer_all_reduce_sentinel", BUFFER_IN_CHUNKS,
         mutant="fence_acquire_only"),
    Case("and an acquire of what was polled", "buffer_all_reduce_sentinel", BUFFER_IN_CHUNKS,
         mutant="fence_release_only"),
    Case("advance_epoch holds idle members too", "buffer_all_reduce_ll", BUFFER_IN_CHUNKS,
         TWO_THREADS, "no_vote_barrier"),
    Case("two handles on one buffer share its record", "buffer_all_reduce_ll", SAME,
         mutant="two_handles"),
    Case("a ring needs a barrier", "buffer_ring_ll.no_barrier", SAME, {"ranks": 3}),
    Case("a ring needs a barrier (sentinel)", "buffer_ring_sentinel.no_barrier", SAME,
         {"ranks": 3}),
    Case("the barrier orders what stands before it", "buffer_ring_sentinel", BUFFER_IN_CHUNKS,
         {"ranks": 3}, "fence_off"),
    Case("kernels on one buffer wait for each other", "buffer_all_reduce_ll", back_to_back(), USER,
         "no_grid_wait"),
    Case("a buffer's rank whose wait ended sends no more", "buffer_all_reduce_sentinel", [{}] * 6,
         {"timeouts": 1}, "send_on_after_timeout"),
]  # fmt: skip


def programs() -> dict[str, Any]:
    """By "kernel: what". The shapes that every all-reduce runs are in sim_programs."""
    made: dict[str, Any] = {}

    def add(name: str, kernel: str, calls: list[dict[str, Any]], **world: Any) -> None:
        made[f"{kernel}: {name}"] = make_program(
            [make_call(**{"kernel": kernel, **call}) for call in calls], **world
        )

    for kernel in PULLS:
        for name, places in PLACES.items():
            add(name, kernel, [{"numel": 5, **places}] * 4, **USER)
            in_chunks = [{"numel": 17, "max_chunk": 4, **places}] * 3
            add(f"{name}, in chunks", kernel, in_chunks, **USER, **TWO_THREADS)
            add(f"{name}, timeouts", kernel, [{"numel": 5, **places}] * 4, timeouts=1, **USER)
        add("staged and zero copy in turn", kernel, [{}, SYMMETRIC] * 3, **USER)
        add("places change", kernel, [*PLACES.values()], **USER)
        three = {"symmetric_inputs": [0, 2], "symmetric_outputs": [1, 2], "numel": 7}
        add("places of three", kernel, [three, {"numel": 7}] * 2, ranks=3, **USER)
        grids = [{**SYMMETRIC, "numel": n, "channels": c} for n, c in ((8, 2), (4, 1), (8, 3))]
        add("zero copy, grids", kernel, grids, **USER)
        add("zero copy, dependent", kernel, back_to_back(**SYMMETRIC), **USER)
        add("zero copy, user's kernels between", kernel, overlapping(**SYMMETRIC), **USER)
    for kernel in ("one_shot_ll", "two_shot_sentinel", "one_shot_flag", "two_shot_pull", LINES[0]):
        streams = [{"stream": stream, "numel": 3} for stream in (0, 1, 1, 0, 1, 0)]
        add("two streams", kernel, streams)
        between = [c for call in streams for c in ({**call, "kernel": "user"}, call)]
        add("two streams, user's kernels between", kernel, between, **USER)
    for kernel in LINES:
        kind = {"dtype": sim.DType.bfloat16} if kernel.endswith("wide") else {}
        sizes = [{"numel": n, **kind} for n in (100, 2, 2, 100, 2, 100)]
        add("several tiles", kernel, [{"numel": 200, **kind}] * 2)
        add("small tiles", kernel, [{"numel": 150, "lines": 2, **kind}] * 2)
        add("tiles in chunks", kernel, [{"numel": 80, "max_chunk": 3, **kind}] * 3)
        add("tiles of three", kernel, [{"numel": 80, **kind}] * 2, ranks=3)
        add("lines of several sizes", kernel, sizes)
        add("odd values in the count's place", kernel, [{"numel": 80, **kind}] * 3, odd_values=True)
        add("lines, a timeout", kernel, [{"numel": 40, **kind}] * 4, timeouts=1)
        for dtype in (sim.DType.bfloat16, sim.DType.float16):
            add(str(dtype), kernel, [{"numel": 140, "dtype": dtype}] * 3)
    kernel = "two_shot_ll128_lanes"
    for name, calls in {
        "one line": [{"numel": 2}] * 3,
        "a partial unit": [{"numel": 39}] * 4,
        "tiles": [{"numel": 100}] * 3,
        "in chunks": [{"numel": 100, "max_chunk": 3}] * 2,
        "sizes": [{"numel": n} for n in (100, 2, 2, 100, 2)],
        "timeouts": [{"numel": 4}] * 4,
    }.items():
        timeouts = 1 if name == "timeouts" else 0
        add(name, kernel, [{"lines": 2, **call} for call in calls], timeouts=timeouts, **LANES)
    add("three lines", kernel, [{"numel": 120, "lines": 3}] * 2, threads=24)
    for kernel in BUFFERS:
        add("same", kernel, [{"numel": 4}] * 5)
        add("three ranks", kernel, [{"numel": 4}] * 4, ranks=3)
        add("four ranks", kernel, [{"numel": 8}] * 3, ranks=4)
        add("sizes", kernel, [{"numel": n} for n in (20, 4, 4, 20, 4, 20)])
        add("in chunks", kernel, [{"numel": 20, "max_chunk": 2}] * 3)
        add("in chunks, two threads", kernel, [{"numel": 20, "max_chunk": 2}] * 2, threads=2)
        add("idle members in the tail", kernel, [{"numel": 12, "max_chunk": 2}] * 2, threads=3)
        add("grids", kernel, [{"numel": n, "channels": c} for n, c in ((16, 2), (8, 1), (16, 4))])
        add("timeouts", kernel, [{"numel": 4}] * 6, timeouts=1)
        add("dependent", kernel, back_to_back(numel=4), **USER)
        for epoch in (JUST_BELOW_2_31, JUST_BELOW_2_32):
            add(f"from epoch {epoch}", kernel, [{"numel": 4}] * 4, first_epoch=epoch)
        copies = any(part in kernel for part in ("gather", "all_to_all", "ring"))
        if copies and not kernel.endswith("sentinel"):
            add("every bit", kernel, SAME, odd_values=True)
    add("aged flags", "one_shot_narrow", AGED, aged_epoch=LATE + 1)
    add("aged flags", "buffer_all_reduce_narrow", BUFFER_AGED, aged_epoch=BUFFER_LATE + 1)
    for protocol in ("ll", "sentinel"):
        multicast = f"one_shot_{protocol}_multicast"
        mixed = [{}, {"kernel": f"one_shot_{protocol}", "numel": 20}] * 3
        add("both forms in turn", multicast, mixed)
        add("both forms in chunks", multicast, [*IN_CHUNKS, *mixed], threads=2)
    return made


def forced_order(add: tuple[int, ...], expect: tuple[int, ...]) -> Any:
    """LL128 on three ranks, with values whose sum depends on the order of additions."""
    calls = [make_call("two_shot_ll128", numel=70)] * 2
    return make_program(calls, ranks=3, inexact=True, add_order=list(add), sum_order=list(expect))
