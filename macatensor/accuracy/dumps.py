"""Dumps by torch_npu's names, over :func:`macatensor.accuracy.start_record`; and records as one HDF5 file.

A dump is a record: ``accuracy.compare`` and ``accuracy.replay`` take it. An HDF5 file holds a record whole, and under
``calls/NAME/inputs`` and ``outputs`` each call's tensors by their places, for other readers (h5py: the extra ``hdf5``).
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from macatensor.accuracy import records
from macatensor.accuracy.local.replaying import Replay, replay
from macatensor.accuracy.recording.sessions import Session
from macatensor.accuracy.recording.settings import Settings
from macatensor.files.untrusted import json_of

if TYPE_CHECKING:
    import numpy as np

FORMAT = "macatensor record"  # attribute of an HDF5 file's root
_MODES = {"all": (True, True), "input": (True, False), "output": (False, True)}
_DATA = {"tensor": 2, "stats": 1}
_KNOWN = ("dump_path", "dump_mode", "dump_data", "dump_list", "dump_op_switch", "dump_level")
_MOST_BYTES = 1 << 36  # of one dataset that is read

_state: dict[str, Session | bool | None] = {"ready": False, "session": None}


def init_dump() -> None:
    """Makes :func:`set_dump` possible, as torch_npu has it."""
    _state["ready"] = True


def set_dump(config: str | os.PathLike[str] | Mapping[str, object]) -> None:
    """Records operators from now on, as a JSON file, or the dictionary in it, says::

        {"dump": {"dump_path": "./dump", "dump_mode": "all", "dump_data": "tensor", "dump_list": ["aten.mm.default"]}}

    ``dump_mode``: all, input or output; ``dump_data``: tensor or stats; ``dump_list``: operators, as ``op_list`` of
    ``start_record``, or objects with such a list under ``layer``; all if empty. ``dump_op_switch`` "off" records nothing.

    Raises RuntimeError without :func:`init_dump`, or while a dump is under way; OSError and ValueError for a file that is
    none, a key or a value that is unknown (the nearest is named).
    """
    if not _state["ready"]:
        raise RuntimeError("set_dump: call init_dump() first")
    if _state["session"] is not None:
        raise RuntimeError("set_dump: a dump is under way; finalize_dump() ends it")
    facts = config if isinstance(config, Mapping) else json_of(Path(config))
    dump = facts.get("dump") if isinstance(facts, Mapping) else None
    if not isinstance(dump, Mapping):
        raise ValueError('set_dump: expected {"dump": {...}}')
    for key in dump:
        if key not in _KNOWN:
            raise ValueError(f"set_dump: unknown key {key!r}{nearest(str(key), _KNOWN)}")
    path = dump.get("dump_path")
    if not isinstance(path, str) or not path:
        raise ValueError(f"set_dump: dump_path is the folder to write to, got {path!r}")
    inputs, outputs = _MODES[_one_of(dump, "dump_mode", _MODES)]
    level = _DATA[_one_of(dump, "dump_data", _DATA)]
    if _one_of(dump, "dump_op_switch", {"on": 1, "off": 0}) == "off":
        return
    if dump.get("dump_level", "op") not in ("op", "all"):
        raise ValueError(f"set_dump: dump_level={dump['dump_level']!r}; accepted: 'op', 'all'")
    settings = Settings(
        path, level, True, inputs, outputs, [], _operators(dump.get("dump_list")), 0, None, []
    )
    _state["session"] = Session(settings, True)


def finalize_dump() -> Path | None:
    """Ends the dump and returns its run's folder; None where nothing was recorded."""
    session, _state["session"], _state["ready"] = _state["session"], None, False
    if not isinstance(session, Session):
        return None
    session.stop()
    return session.folder


def nearest(given: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """``"; did you mean 'x'?"``, or what there is."""
    near = difflib.get_close_matches(given, list(known), 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _one_of(dump: Mapping[str, Any], key: str, accepted: Mapping[str, object]) -> str:
    value = dump.get(key, next(iter(accepted)))
    if value not in accepted:
        raise ValueError(f"set_dump: {key}={value!r}{nearest(str(value), accepted)}")
    return str(value)


def _operators(listed: object) -> list[str]:
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise ValueError(f"set_dump: dump_list is a list, got {listed!r}")
    names: list[str] = []
    for entry in listed:
        inner = entry.get("layer", []) if isinstance(entry, dict) else [entry]
        if not isinstance(inner, list) or not all(isinstance(name, str) for name in inner):
            raise ValueError(f"set_dump: dump_list holds {entry!r}, which names no operators")
        names += inner
    return names


# --- HDF5


def _h5py() -> ModuleType:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; HDF5 needs it: pip install 'macatensor[hdf5]'") from None
    return h5py  # type: ignore[no-any-return]


def _written(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A host tensor as NumPy has it; dtypes that it lacks as bytes of their size."""
    with contextlib.suppress(TypeError):
        return tensor.numpy()
    size = tensor.element_size()
    return tensor.view({1: torch.uint8, 2: torch.int16}[size]).numpy()


def to_hdf5(folder: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Writes a record, of several runs the newest, as one HDF5 file. Raises OSError, ValueError for what is no record,
    and FileExistsError where the file is there."""
    from safetensors.torch import load_file

    h5py = _h5py()
    run = records.read(Path(folder))
    with h5py.File(file, "x") as held:
        held.attrs["format"], held.attrs["version"] = FORMAT, records.FORMAT
        for process in run.processes:
            group = held.create_group(process.folder.name)
            for name in (records.ENVIRONMENT, records.CALLS):
                group.create_dataset(name, data=(process.folder / name).read_text(encoding="utf-8"))
            for path in sorted((process.folder / records.TENSORS).glob("*.safetensors")):
                for key, tensor in load_file(path).items():
                    made = group.create_dataset(f"{records.TENSORS}/{path.name}/{key}", data=_written(tensor))
                    made.attrs["dtype"] = str(tensor.dtype).removeprefix("torch.")
            for call in process.calls:
                for side, arguments in (("inputs", call.inputs), ("outputs", call.outputs)):
                    for place, entry in records.tensors_of(arguments):
                        if entry.file and entry.key:
                            group[f"calls/{call.name}/{side}/{place}"] = h5py.SoftLink(
                                f"/{process.folder.name}/{entry.file}/{entry.key}"
                            )


def from_hdf5(file: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Writes the record that an HDF5 file holds into a new folder, which it returns. Raises OSError and ValueError for a
    file that holds none, and FileExistsError where the folder is there."""
    from safetensors.torch import save_file

    h5py = _h5py()
    target = Path(folder)
    with h5py.File(file, "r") as held:
        if held.attrs.get("format") != FORMAT:
            raise ValueError(f"{file} holds no record of macatensor")
        target.mkdir(parents=True)
        for name, group in held.items():
            if (
                not isinstance(group, h5py.Group)
                or not name.startswith("process-")
                or "/" in name
                or ".." in name
            ):
                raise ValueError(f"{file} has a group {name!r}, which is no process of a record")
            process = target / name
            (process / records.TENSORS).mkdir(parents=True)
            for part in (records.ENVIRONMENT, records.CALLS):
                text = group[part][()]
                (process / part).write_text(
                    text.decode() if isinstance(text, bytes) else str(text), encoding="utf-8"
                )
            for stem, keys in group[records.TENSORS].items() if records.TENSORS in group else ():
                if not records.is_tensor_file(f"{records.TENSORS}/{stem}"):
                    raise ValueError(f"{file} has a group {stem!r}, which is no file of a record")
                tensors = {key: _read(data) for key, data in keys.items()}
                save_file(tensors, process / records.TENSORS / stem)
    return target


def _read(data: Any) -> torch.Tensor:
    if data.nbytes > _MOST_BYTES or data.external or data.is_virtual:  # of other files nothing is read
        raise ValueError(f"the dataset {data.name!r} has {data.nbytes} bytes, or lies in another file")
    tensor = torch.from_numpy(data[()].copy()) if data.shape else torch.tensor(data[()], device="cpu")
    dtype = getattr(torch, str(data.attrs.get("dtype", "")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"the dataset {data.name!r} names no dtype of PyTorch")
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


@contextlib.contextmanager
def dumper(
    use_dump: bool = True,
    use_load: bool = False,
    dump_path: str | os.PathLike[str] = "./dump.h5",
    load_file_path: str | os.PathLike[str] = "",
    device: str = "maca",
) -> Iterator[list[Replay]]:
    """As ``torch.utils.dumper`` of Ascend's PyTorch: records the block into an HDF5 file, and with ``use_load`` runs the
    operators of another file again first, from their recorded inputs. Yields the list that this replay is in."""
    replayed: list[Replay] = []
    with tempfile.TemporaryDirectory(prefix="macatensor-dump-") as scratch:
        if use_load:
            replayed.append(replay(from_hdf5(load_file_path, Path(scratch) / "loaded"), device))
        if not use_dump:
            yield replayed
            return
        session = Session(Settings(scratch + "/dumped", 2, True, True, True, [], [], 0, None, []), True)
        try:
            yield replayed
        finally:
            session.stop()
        if session.folder is not None:
            to_hdf5(session.folder, dump_path)
