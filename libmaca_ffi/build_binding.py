"""Writes the C source of the cffi module: ``python build_binding.py OUTPUT.c``.

The declarations Python sees are maca.h and shim.h themselves, so no signature is written twice.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent

# cffi's wrappers release the interpreter lock around every call. That costs 85 us when another Python thread is
# busy, so here they keep it, and the functions that block release it themselves.
PREAMBLE = """
#undef Py_BEGIN_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#undef Py_END_ALLOW_THREADS
#define Py_END_ALLOW_THREADS }
#include "maca.h"
#include "shim.h"
"""


def declarations(header: str) -> str:
    """The header without what the preprocessor handles and without its exported entry."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    keep = [
        line for line in text.splitlines() if not line.startswith("#") or line.startswith("#define MACA_ABI")
    ]
    text = "\n".join(keep)
    return re.sub(r"const maca_interface\s*\*\s*maca_get_interface\(int32_t major\);", "", text)


def main(output: str) -> None:
    ffi = FFI()
    for header in (HERE / "include" / "maca.h", HERE / "shim" / "shim.h"):
        ffi.cdef(declarations(header.read_text()))
    ffi.set_source("libmaca_ffi._binding", PREAMBLE, py_limited_api=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1])
