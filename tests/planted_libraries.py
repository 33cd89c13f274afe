"""Device libraries with one defect each, and who has to find it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "plants" / "plants.c"
INCLUDE = Path(__file__).parents[1] / "libmaca_ffi" / "include"

# defect: the rule of maca.h that is broken
OF_THE_INTERFACE = {
    "table of 8 bytes": "the_table_has_a_size",
    "a slot of NULL": "mandatory_slots_are_there",
    "one of three": "slots_that_go_together_do",
    "another major": "the_table_names_its_version",
    "any major": "other_majors_get_null",
    "no devices": "devices_are_counted",
    "open without a device": "a_device_opens",
    "refusal without a reason": "a_device_that_is_not_there_is_refused",
    "no threads": "the_device_has_threads",
    "alignment of 24": "the_alignment_is_a_power_of_two",
    "info past its size": "device_info_keeps_to_its_size",
    "name without an end": "texts_of_the_device_end",
    "one kernel too many": "kernels_are_named",
    "sleeps": "a_device_opens",
    "spins": "a_device_opens",
    "exits": "a_device_opens",
    "aborts": "a_device_opens",
    "takes all memory": "a_device_opens",
    "prints": "a_device_opens",
    "allocation out of line": "allocations_are_aligned",
    "allocation of NULL": "allocations_are_aligned",
    "memory given twice": "allocations_lie_apart",
    "allocation of too much": "too_much_memory_is_refused",
    "memory that leaks": "freed_memory_comes_back",
    "more free than there is": "memory_info_says_what_can_be",
    "address without a tag": "host_code_cannot_read_an_address",
    "copy one byte short": "copies_are_exact",
    "copy rounded up to 4": "copies_are_exact",
    "copy to an aligned address": "copies_are_exact",
    "copy on the default stream": "work_of_a_stream_is_in_order",
    "fill of a wrong byte": "fills_are_exact",
    "fill past the end": "fills_are_exact",
    "stream wait that does not": "a_wait_for_a_stream_waits",
    "device wait that does not": "a_wait_for_the_device_waits_for_all",
    "stream always ready": "a_stream_that_is_ready_is_done",
    "stream never ready": "the_default_stream_is_null",
    "status of its own": "the_default_stream_is_null",
    "event before its work": "an_event_comes_after_its_work",
    "event always ready": "an_event_that_is_ready_is_done",
    "event that is not waited for": "a_stream_waits_for_an_event",
    "seconds for milliseconds": "events_time_in_milliseconds",
    "time that runs backwards": "events_time_in_milliseconds",
    "plan of NULL": "a_kernel_computes",
    "decline without a reason": "an_unknown_kernel_is_declined",
    "unknown kernels are relu": "an_unknown_kernel_is_declined",
    "garbage in plan_info": "plan_info_says_what_can_be",
    "plan_info past its size": "plan_info_keeps_to_its_size",
    "plans that leak": "a_plan_is_destroyed_in_flight",
    "launch on the default stream": "launches_run_on_every_stream",
    "no work": "a_kernel_computes",
    "error lost": "an_index_out_of_range_is_an_error",
    "error of another launch": "an_index_out_of_range_is_an_error",
    "error of no code": "an_index_out_of_range_is_an_error",
    "error that loses the device": "an_index_out_of_range_is_an_error",
    "error without a text": "an_error_has_a_text",
    "error without end": "errors_are_taken_once_in_order",
    "error at first": "there_is_no_error_at_first",
    "index unchecked": "an_index_out_of_range_is_an_error",
    "race of allocations": "threads_allocate_at_once",
    "one plan at a time": "threads_launch_one_plan",
    "ways past the capacity": "ways_keep_to_the_capacity",
    "a way of NULL": "ways_keep_to_the_capacity",
    "any way is taken": "a_way_computes_or_is_declined",
    "times in microseconds": "launches_have_their_times",
    "times that come again": "launches_have_their_times",
    "parts in another order": "two_ranks_exchange",
    "ranks that add up apart": "ranks_have_the_same_bits",
    "a lost rank is no error": "a_rank_that_dies_ends_the_collective",
}

# defect: the row whose kernel has it
OF_KERNELS = {
    "reads past the end": "relu",
    "reads before the start": "relu",
    "unused reads past the end": "relu",
    "writes past the end": "relu",
    "writes before the start": "relu",
    "writes its input": "relu",
    "last element wrong": "relu",
    "tail left out": "relu",
    "aligned loads alone": "relu",
    "strides ignored": "relu",
    "NaN lost": "relu",
    "denormals flushed": "relu",
    "sums without determinism": "sum.dim_IntList",
    "crash on an absent attribute": "sum.dim_IntList",
}


def compile_plants(folder: Path) -> Path:
    """Compiles the library into a folder, in a second or so."""
    compiler = next((c for c in ("cc", "gcc", "clang", "c++") if shutil.which(c)), None)
    assert compiler is not None, "this needs a C compiler, as the build does"
    library = folder / "libplants.so"
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden",
         "-I", str(INCLUDE), str(SOURCE), "-o", str(library), "-ldl", "-lpthread"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return library
