"""What torch.profiler shows of a CUDA device, and where maca shows the same: each part is looked for by a test.

``python tests/profiler_parts.py --write`` writes the table in docs/profiling.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "profiling.md"
BEGIN, END = "<!-- parts: from tests/profiler_parts.py -->", "<!-- parts end -->"


class Seen(NamedTuple):
    """One profile with everything on: its table, its averages by name, its trace."""

    table: str
    averages: dict[str, Any]
    events: list[dict[str, Any]]
    trace: dict[str, Any]

    def of(self, category: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e.get("cat") == category]


class Part(NamedTuple):
    where: str
    cuda: str
    maca: str
    is_there: Callable[[Seen], object]


def _column(cuda: str, maca: str) -> Part:
    return Part("table", cuda, maca, lambda seen: f" {maca}  " in f" {seen.table.splitlines()[1]}  ")


def _event(cuda: str, maca: str, is_there: Callable[[Seen], object]) -> Part:
    return Part("trace", cuda, maca, is_there)


def _with(category: str, *arguments: str) -> Callable[[Seen], object]:
    def check(seen: Seen) -> object:
        found = seen.of(category)
        return found and all(set(arguments) <= set(e["args"]) for e in found)

    return check


PARTS = [
    *(
        _column(name, name.replace("CUDA", "MACA"))
        for name in (
            "Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "CUDA Mem", "Self CUDA Mem", "CPU total", "Self CPU",
            "# of Calls", "Input Shapes",
        )
    ),
    Part("table", "Total FLOPs, in fitting units", "the same", lambda seen: "FLOPs" in seen.table.splitlines()[1]),
    Part("table", "a row for each kernel", "the same", lambda seen: "convolution_backward" in seen.averages),
    Part("table", "`Memcpy HtoD`, `Memcpy DtoH`, `Memset`", "the same",
         lambda seen: {"Memcpy HtoD", "Memcpy DtoH", "Memset"} <= set(seen.averages)),
    Part("table", "`Self CUDA time total` below it", "`Self MACA time total`",
         lambda seen: "Self MACA time total" in seen.table),
    _event("`kernel`, with device, stream, correlation", "the same; `implementation` and `bytes` beside",
           _with("kernel", "device", "stream", "correlation", "External id", "bytes")),
    _event("`gpu_memcpy`, with bytes", "the same", _with("gpu_memcpy", "bytes", "stream")),
    _event("`gpu_memset`", "the same", _with("gpu_memset", "bytes", "stream")),
    _event("`cuda_runtime`: calls of the host", "`privateuse1_runtime`", _with("privateuse1_runtime", "correlation")),
    _event("`ac2g`: an arrow from call to kernel", "the same",
           lambda seen: {e["ph"] for e in seen.of("ac2g")} == {"s", "f"}),
    _event("`fwdbwd`: an arrow from forward to backward", "the same", lambda seen: seen.of("fwdbwd")),
    _event("`cpu_op`, with shapes, dtypes, strides", "the same",
           lambda seen: [e for e in seen.of("cpu_op") if {"Input Dims", "Input type"} <= set(e["args"])]),
    _event("`user_annotation`: ranges of the program", "the same",
           lambda seen: "mine" in {e["name"] for e in seen.of("user_annotation")}),
    _event("`python_function`: stacks and modules", "the same", lambda seen: seen.of("python_function")),
    _event("`[memory]`: bytes and totals", "the same",
           lambda seen: [e for e in seen.events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 20]),
    _event("streams as threads, with names", "the same",
           lambda seen: "stream 0" in {e["args"].get("name") for e in seen.events if e.get("name") == "thread_name"}),
    _event("`deviceProperties`", "the same", lambda seen: seen.trace["deviceProperties"][0]["totalGlobalMem"] > 0),
]  # fmt: skip

# The Trace Event Format of Chrome, as far as PyTorch's traces use it.
_NUMBER = {"type": "number"}
_WHERE = {"pid": {"type": ["integer", "string"]}, "tid": {"type": ["integer", "string"]}, "ts": _NUMBER}


def _phase(ph: str, *required: str, **more: object) -> dict[str, Any]:
    properties = {
        "ph": {"const": ph},
        "name": {"type": "string"},
        "args": {"type": "object"},
        **_WHERE,
        **more,
    }
    return {
        "if": {"properties": {"ph": {"const": ph}}},
        "then": {"properties": properties, "required": ["ph", *required]},
    }


_AT = ("name", "pid", "tid", "ts")
_FLOW = {"id": {"type": ["integer", "string"]}, "bp": {"enum": ["e"]}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph"],
                "properties": {"ph": {"enum": ["X", "M", "i", "s", "f", "B", "E", "C"]}},
                "allOf": [
                    _phase(
                        "X", *_AT, "dur", "cat", dur={"type": "number", "minimum": 0}, cat={"type": "string"}
                    ),
                    _phase("M", "name", "pid", "args"),
                    _phase("i", *_AT, "s", s={"enum": ["g", "p", "t"]}),
                    _phase("s", *_AT, "id", "cat", **_FLOW),
                    _phase("f", *_AT, "id", "cat", **_FLOW),
                ],
            },
        },
        "deviceProperties": {"type": "array", "items": {"type": "object", "required": ["id", "name"]}},
    },
}


def page() -> str:
    """The table, in Markdown."""
    rows = [f"| {part.where} | {part.cuda} | {part.maca} |" for part in PARTS]
    return "\n".join([BEGIN, "| | CUDA | maca |", "|---|---|---|", *rows, END])


def written() -> str:
    """The table that the page has."""
    text = PAGE.read_text()
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        print(page())
    else:
        PAGE.write_text(PAGE.read_text().replace(written(), page()))
