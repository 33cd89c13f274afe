"""Something to do once a module has been imported; the one finder of the process is that of ``maca_autoload``."""

from __future__ import annotations

from maca_autoload.after_import import after_import as after_import
