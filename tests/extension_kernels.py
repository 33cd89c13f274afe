"""A kernel of a user's own that marks what it computed, for the tests of extensions."""

from __future__ import annotations

from pathlib import Path

from macatensor import cpp_extension

MARKED = r"""
MACA_KERNEL("gelu", [](const maca::Request& request) {
  if (request.text("approximate", "none") != "none") throw maca::Declined("only approximate='none'");
  return request.elementwise([](float) { return MARK; });
});
"""
FAST = ["-O1"]


def marked(name: str, mark: float, folder: Path) -> cpp_extension.Extension:
    return cpp_extension.load_inline(
        name, MARKED, extra_cflags=[*FAST, f"-DMARK={float(mark)}f"], build_directory=folder
    )


def unload_all() -> None:
    for extension in cpp_extension.joined():
        extension.unload()
