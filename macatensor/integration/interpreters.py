"""Refuses what PyTorch cannot do and does not refuse: its import in a sub-interpreter hangs, or breaks the first one's."""

from __future__ import annotations

import ctypes


def refuse_sub_interpreters() -> None:
    """Called before PyTorch is imported.

    Raises:
        ImportError: in any interpreter of the process but the first.
    """
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    api.PyInterpreterState_GetID.restype = ctypes.c_int64
    api.PyInterpreterState_GetID.argtypes = [ctypes.c_void_p]
    number = api.PyInterpreterState_GetID(api.PyInterpreterState_Get())
    if number:
        raise ImportError(
            f"macatensor: PyTorch works in a process's main interpreter alone, this is sub-interpreter {number}; "
            "import it there, or in a process of its own (torch.multiprocessing)"
        )
