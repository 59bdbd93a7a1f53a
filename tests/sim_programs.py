"""Programs for the simulator: the shipped protocols in every shape, and the planted mistakes.

A mutant is a kernel's name ("one_shot_ll.one_buffer") or a switch of the simulator's policies
(`mutant=`). Each comes with a program in which it does harm, and that program on the shipped
code must stay right: so what is reported is the mistake and not the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

sim = pytest.importorskip("llcoll._sim", reason="built without the simulator (LLCOLL_SIM=1)")

ALONE = ("streaming", "rows")  # a CPU rank is one thread
JUST_BELOW_2_32 = 2**32 - 2
JUST_BELOW_2_31 = 2**31 - 2
JUST_BELOW_2_63 = 2**63 - 2


def make_call(kernel: str, **fields: Any) -> Any:
    call = sim.Call()
    call.kernel = kernel
    for name, value in fields.items():
        setattr(call, name, value)
    return call


def make_program(calls: list[Any], **fields: Any) -> Any:
    program = sim.Program()
    program.calls = calls
    for name, value in fields.items():
        setattr(program, name, value)
    return program


@dataclass
class Case:
    """`calls` are keyword arguments of each call; `kernel` runs them, `shipped` is its original."""

    rule: str
    kernel: str
    calls: list[dict[str, Any]]
    world: dict[str, Any] = field(default_factory=dict)
    mutant: str = "none"
    shipped_world: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        suffix = "" if self.mutant == "none" else f"+{self.mutant}"
        return self.kernel + suffix

    def program(self, kernel: str, **changes: Any) -> Any:
        calls = [make_call(**{"kernel": kernel, **call}) for call in self.calls]
        return make_program(calls, **{**self.world, **changes})

    def broken(self) -> Any:
        return self.program(self.kernel, mutant=self.mutant)

    def shipped(self) -> Any:
        return self.program(self.kernel.split(".")[0], **self.shipped_world)


SAME = [{}] * 5
LONG_THEN_SHORT = [{"numel": n} for n in (20, 2, 2, 20, 2, 20)]  # strides of 16 and 8 slots
IN_CHUNKS = [{"numel": 10, "max_chunk": 2}] * 3
TWO_THREADS = {"threads": 2}


def overlapping(waits: bool = True, **call: Any) -> list[dict[str, Any]]:
    """Dependent launches, each preceded by a user's kernel that writes the input."""
    user = {"kernel": "user", "dependent": True, "waits": waits, "numel": call.get("numel", 2)}
    return [user, {"dependent": True, **call}] * 4


def back_to_back(**call: Any) -> list[dict[str, Any]]:
    return [{"dependent": True, **call}] * 5


USER = {"model_user": True}

MUTANTS = [
    # What is received
    Case("a flag is checked for every packet", "one_shot_ll.flag_unchecked", SAME),
    Case("a packet is one access", "one_shot_ll", SAME, mutant="packet_in_two_words"),
    Case("every word of a unit is checked", "one_shot_sentinel.first_word", SAME),
    Case(
        "input that equals the pattern is replaced",
        "one_shot_sentinel.raw_input",
        SAME,
        {"odd_values": True},
    ),
    Case(
        "a result that equals the pattern is replaced",
        "two_shot_sentinel.raw_result",
        SAME,
        {"odd_values": True},
    ),
    # How many buffers
    Case("LL needs two buffers", "one_shot_ll.one_buffer", SAME),
    Case("sentinel needs three buffers", "one_shot_sentinel.two_buffers", SAME),
    Case("staged flag needs two buffers", "one_shot_flag.one_buffer", SAME),
    Case(
        "chunks staged one ahead need four buffers",
        "one_shot_flag_ahead.three_buffers",
        [{"numel": 16, "max_chunk": 1}] * 2,
    ),
    Case("phases have regions of their own", "two_shot_ll.one_region", SAME),
    # What is cleared
    Case("slots are cleared", "one_shot_sentinel.no_clear", SAME),
    Case("not the buffer being received", "one_shot_sentinel.clears_current", SAME),
    Case("the buffer that the last epoch used", "one_shot_sentinel.clears_next", SAME),
    Case("as much as that epoch filled", "one_shot_sentinel.clears_this_size", LONG_THEN_SHORT),
    Case("both phases", "two_shot_sentinel.clears_one_phase", SAME),
    Case("the extent is remembered", "one_shot_sentinel", SAME, mutant="extent_forgotten"),
    # Fences where one launch runs several epochs. Members' units differ in the tail.
    Case(
        "clears are fenced from the next sends",
        "one_shot_sentinel",
        IN_CHUNKS,
        mutant="fence_off",
    ),
    Case(
        "the fence holds on the peer's side too",
        "one_shot_sentinel",
        IN_CHUNKS,
        mutant="fence_release_only",
    ),
    Case(
        "the fence holds on the clearer's side too",
        "one_shot_sentinel",
        IN_CHUNKS,
        mutant="fence_acquire_only",
    ),
    Case(
        "another member's clears: a fence behind the barrier",
        "two_shot_sentinel",
        [{"numel": 12, "max_chunk": 2}] * 3,
        TWO_THREADS,
        mutant="no_second_fence",
    ),
    Case(
        "the same in a reduce-scatter",
        "reduce_scatter_sentinel",
        [{"numel": 10, "max_chunk": 2}] * 3,
        TWO_THREADS,
        mutant="no_second_fence",
    ),
    # Members of a CTA
    Case(
        "a barrier ends each epoch, idle members included",
        "one_shot_ll",
        [{"numel": 10, "max_chunk": 2}] * 3,
        TWO_THREADS,
        mutant="no_vote_barrier",
    ),
    Case(
        "a barrier ends each epoch (sentinel)",
        "one_shot_sentinel",
        [{"numel": 10, "max_chunk": 2}] * 3,
        TWO_THREADS,
        mutant="no_vote_barrier",
    ),
    Case(
        "reader and next sender are one member, or a barrier stands between",
        "one_shot_ll",
        [{"numel": 8, "max_chunk": 2}] * 2,
        TWO_THREADS,
        mutant="reader_is_not_sender",
    ),
    Case(
        "all members' data are behind the barrier before the flag",
        "one_shot_flag",
        [{"numel": 4}] * 3,
        TWO_THREADS,
        mutant="no_flush_barrier",
    ),
    # Flags
    Case("data are released before the flag", "one_shot_flag", SAME, mutant="flag_before_data"),
    Case("and acquired after it", "one_shot_flag", SAME, mutant="no_acquire_after_flag"),
    Case("a flag may be ahead: compared with >=", "one_shot_flag.equal", SAME),
    Case(
        "streaming stores need sfence before the flag",
        "one_shot_flag_streaming",
        SAME,
        mutant="no_sfence",
    ),
    Case(
        "flags are compared as 64 bits, signed",
        "one_shot_flag.flag_32",
        SAME,
        {"first_epoch": JUST_BELOW_2_32},
    ),
    # State
    Case(
        "a record for each CTA",
        "one_shot_ll",
        [{"numel": 4, "channels": 2}] * 4,
        mutant="one_record_for_all",
    ),
    Case(
        "the epoch lives on the device: a graph repeats", "one_shot_ll", SAME, mutant="host_epoch"
    ),
    Case(
        "two handles share the scratch's state",
        "one_shot_ll",
        SAME,
        mutant="two_handles",
    ),
    Case(
        "the epoch has 64 bits",
        "one_shot_ll.epoch_32",
        SAME,
        {"first_epoch": JUST_BELOW_2_32},
    ),
    Case(
        "a channel's region does not move with the grid",
        "one_shot_ll",
        [{"numel": n, "channels": c} for n, c in ((8, 2), (8, 1), (8, 2), (8, 4), (8, 2), (8, 1))],
        mutant="regions_by_grid",
    ),
    Case(
        "LL and sentinel share no memory",
        "one_shot_ll",
        [{"numel": 8}, {"kernel": "one_shot_sentinel"}] * 3,
        mutant="shared_scratch",
    ),
    # Calls in which a rank need not hear from its peers
    Case(
        "hello words keep a broadcast in step",
        "broadcast_ll",
        SAME,
        mutant="no_hello",
    ),
    Case(
        "hello words keep a reduce in step",
        "reduce_sentinel",
        SAME,
        mutant="no_hello",
    ),
    Case(
        "an all-reduce in between does not repair a broadcast without hellos",
        "all_gather_ll",
        [
            {"splits": [2, 0]},
            {"splits": [2, 0]},
            {"kernel": "one_shot_ll"},
            {"splits": [2, 0]},
            {"splits": [2, 0]},
        ],
        mutant="no_hello",
    ),
    Case(
        "a copy keeps every bit: not by sentinel",
        "all_gather_ll.by_sentinel",
        SAME,
        {"odd_values": True},
    ),
    Case(
        "calls on two streams are ordered by an event",
        "one_shot_ll",
        [{"stream": stream} for stream in (0, 1, 1, 0, 1, 0)],
        mutant="no_stream_event",
    ),
    Case(
        "no channel has an epoch without data",
        "one_shot_ll",
        [{"numel": 5, "channels": 2, "max_chunk": 1}, {"numel": 3, "channels": 2}] * 3,
        mutant="idle_epoch",
    ),
    Case("nobody sends before all have cleared", "one_shot_ll", SAME, mutant="late_clear"),
    # Limits
    Case(
        "a rank whose wait ended sends no more",
        "one_shot_sentinel",
        [{}] * 6,
        {"timeouts": 1},
        mutant="send_on_after_timeout",
    ),
    # Dependent launch
    Case(
        "a launch waits for the one before",
        "one_shot_ll",
        back_to_back(),
        USER,
        mutant="no_grid_wait",
    ),
    Case(
        "it waits before it reads its state",
        "one_shot_ll",
        back_to_back(),
        USER,
        mutant="state_before_wait",
    ),
    Case(
        "it waits before its first send",
        "one_shot_ll",
        back_to_back(),
        USER,
        mutant="send_before_wait",
    ),
    Case(
        "it waits before it reads the user's input",
        "one_shot_ll.early_input",
        overlapping(),
        USER,
    ),
    Case(
        "it waits before it writes the user's output",
        "one_shot_ll",
        overlapping(),
        USER,
        mutant="output_before_wait",
    ),
    Case(
        "it waits before it clears",
        "one_shot_sentinel.early_clear",
        back_to_back(),
        USER,
    ),
    Case(
        "every thread of it waits",
        "one_shot_ll",
        back_to_back(numel=4),
        {**USER, **TWO_THREADS},
        mutant="one_thread_no_wait",
    ),
    Case(
        "a kernel that waits for nobody lets launches overlap: the record's launch id tells",
        "one_shot_ll",
        [{"dependent": True}, {"kernel": "user", "dependent": True, "waits": False}] * 4,
        USER,
        mutant="no_launch_guard",
    ),
    Case(
        "ranks that share a GPU trigger after the last receive",
        "one_shot_ll",
        back_to_back(),
        {**USER, "resident": 3},
        mutant="early_trigger",
    ),
]


def exchange_programs() -> dict[str, Any]:
    """The collectives of one exchange: equal parts, parts that differ or are empty, roots."""
    programs: dict[str, Any] = {}

    def add(name: str, kernel: str, calls: list[dict[str, Any]], **world: Any) -> None:
        made = [make_call(**{"kernel": kernel, **call}) for call in calls]
        programs[f"{kernel}: {name}"] = make_program(made, **world)

    others = ("shot", "buffer", ".")
    for kernel in (n for n in sim.kernel_names() if not any(part in n for part in others)):
        alone = kernel.endswith("rows")
        rooted = kernel.startswith(("broadcast", "reduce_ll", "reduce_flag", "reduce_sentinel"))
        add("same", kernel, SAME)
        add("three ranks", kernel, [{"numel": 3}] * 4, ranks=3)
        add("sizes", kernel, LONG_THEN_SHORT)
        add("in chunks", kernel, IN_CHUNKS)
        if not alone:
            add("idle member in the tail", kernel, [{"numel": 10, "max_chunk": 2}] * 3, threads=2)
            add("grids", kernel, [{"numel": n, "channels": c} for n, c in ((8, 2), (4, 1), (8, 3))])
            add("dependent", kernel, back_to_back(), **USER)
        add("just below 2^32", kernel, SAME, first_epoch=JUST_BELOW_2_32)
        add("timeouts", kernel, [{}] * 6, timeouts=1)
        if "scatter" not in kernel and not kernel.startswith("reduce"):
            add("every bit", kernel, SAME, odd_values=True)
        if rooted:
            add("roots", kernel, [{"root": r} for r in (0, 1, 1, 0, 0, 1)])
            add("roots of three", kernel, [{"root": r} for r in (0, 1, 2, 2, 0)], ranks=3)
            add("many before one all-reduce", kernel, [*SAME, {"kernel": "one_shot_ll"}, *SAME])
        elif kernel.startswith("all_to_all"):
            splits = [[0, 5, 3, 0], [1, 0, 0, 2], [0, 0, 4, 4], [2, 2, 2, 2]]
            add("parts of their own", kernel, [{"splits": s} for s in splits])
            long = [[0, 40, 2, 0], [2, 2, 2, 2], [0, 0, 40, 4], [1, 20, 20, 1]]
            add("more epochs than the peer", kernel, [{"splits": s, "max_chunk": 1} for s in long])
        else:
            add("uneven", kernel, [{"splits": s} for s in ([4, 0], [0, 4], [1, 6], [3, 3], [0, 2])])
            add(
                "uneven of three",
                kernel,
                [{"splits": s} for s in ([4, 0, 1], [0, 0, 4])] * 2,
                ranks=3,
            )
            threads = 1 if alone else 2
            chunks = [{"splits": [9, 2], "max_chunk": 1}] * 3
            add("uneven in chunks", kernel, chunks, threads=threads)
    return programs


def shipped_programs() -> dict[str, Any]:
    """Every shipped kernel in the shapes that made a mutant fail, and a few more."""
    programs = exchange_programs()

    def add(name: str, kernel: str, calls: list[dict[str, Any]], **world: Any) -> None:
        made = [make_call(**{"kernel": kernel, **call}) for call in calls]
        programs[f"{kernel}: {name}"] = make_program(made, **world)

    for kernel in (name for name in sim.kernel_names() if "." not in name and "shot" in name):
        if not sim.has_kernel(kernel, sim.DType.float32) or kernel.endswith("lanes"):
            continue
        add("same", kernel, SAME)
        add("three ranks", kernel, [{"numel": 3}] * 4, ranks=3)
        add("four ranks", kernel, [{"numel": 5}] * 3, ranks=4)
        add("sizes", kernel, LONG_THEN_SHORT)
        add("in place", kernel, [{"numel": 3, "in_place": True}] * 4)
        add("fewer elements than ranks", kernel, [{"numel": 1}] * 3, ranks=3)
        add("in chunks", kernel, IN_CHUNKS)
        add("just below 2^31", kernel, SAME, first_epoch=JUST_BELOW_2_31)
        add("just below 2^32", kernel, SAME, first_epoch=JUST_BELOW_2_32)
        add("just below 2^63", kernel, SAME, first_epoch=JUST_BELOW_2_63)
        add("timeouts", kernel, [{}] * 6, timeouts=1)
        # A switch adds NaNs as it will.
        odd = kernel != "two_shot_pull_multicast"
        add("odd values", kernel, SAME, odd_values=odd)
        for dtype in (sim.DType.int32, sim.DType.uint8):
            if sim.has_kernel(kernel, dtype):
                add(str(dtype), kernel, [{"numel": 5, "dtype": dtype}] * 3)
        for dtype, grain in ((sim.DType.bfloat16, 4), (sim.DType.float64, 8)):
            calls = [{"numel": 3, "dtype": dtype}] * 4
            if sim.has_kernel(kernel, dtype):
                add(str(dtype), kernel, calls, grain=grain, odd_values=True)
        if kernel.endswith(ALONE):
            continue
        if "ll128" in kernel:  # lanes of a line are not modelled
            add("dependent", kernel, back_to_back(), **USER)
            add("dependent, early trigger", kernel, back_to_back(), early_trigger=True, **USER)
            add("user's kernels between", kernel, overlapping(), **USER)
            continue
        grids = [{"numel": n, "channels": c} for n, c in ((8, 2), (4, 1), (8, 4), (2, 2), (8, 1))]
        add("grids", kernel, grids)
        add("two threads", kernel, [{"numel": 8}] * 4, threads=2)
        add("two threads in chunks", kernel, IN_CHUNKS, threads=2)
        add("idle member in the tail", kernel, [{"numel": 12, "max_chunk": 2}] * 3, threads=2)
        add(
            "three threads, three ranks",
            kernel,
            [{"numel": 6, "max_chunk": 3}] * 2,
            threads=3,
            ranks=3,
        )
        add("dependent", kernel, back_to_back(), **USER)
        add("dependent, early trigger", kernel, back_to_back(), early_trigger=True, **USER)
        add("dependent, two threads", kernel, back_to_back(numel=4), threads=2, **USER)
        add("user's kernels between", kernel, overlapping(), **USER)
        lone = {"kernel": "user", "dependent": True, "waits": False}
        add("a kernel that never waits between", kernel, [{"dependent": True}, lone] * 4, **USER)
        if sim.has_kernel(kernel, sim.DType.float32, once=True):
            add("one unit per member", kernel, [{"numel": 4, "once": True}] * 4, threads=2)
            add(
                "one unit per member, three ranks",
                kernel,
                [{"numel": 4, "once": True}] * 3,
                threads=2,
                ranks=3,
            )
    return programs
