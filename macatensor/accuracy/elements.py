"""What a record holds of a tensor, and whole tensors in safetensors files: written, and put together again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from macatensor.files.untrusted import member, readable


@dataclass
class TensorEntry:
    """One tensor of a call. Level 0 has the structure, level 1 the numbers too, level 2 the elements too.

    Numbers are of the finite elements, complex ones taken as pairs of real ones; None where there is none, or where
    the level or the dtype has none (``hash`` is of the elements' bytes in row-major order, NaN as they are).
    """

    dtype: str  # as in "float32"
    shape: list[int]
    stride: list[int] | None = None
    device: str = "cpu"
    layout: str = "strided"
    requires_grad: bool = False
    made_by: int | None = None  # the number of the call whose result it was, if a recorded one's
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    norm: float | None = None  # L2
    nan: int | None = None
    inf: int | None = None
    hash: str | None = None
    file: str | None = None  # of its elements, in the process's folder: "tensors/000123.safetensors"
    key: str | None = None  # in that file
    parts: dict[str, TensorEntry] | None = None  # of a sparse, quantized or nested tensor: indices, values, …


# dtypes that the file format has no name for, and the view of them that is written
_WRITTEN_AS = {torch.complex128: torch.float64, torch.complex32: torch.float16}


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """``torch.float32`` of ``float32``."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of this PyTorch")
    return dtype


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """A strided tensor as it is written: on the host, contiguous, complex numbers that have no name as pairs."""
    held = tensor.detach()
    if held._is_zerotensor():  # a derivative that is zero, without memory
        held = torch.zeros(held.shape, dtype=held.dtype, device="cpu")
    host = held.to("cpu").resolve_conj().resolve_neg().contiguous()
    return torch.view_as_real(host) if host.dtype in _WRITTEN_AS else host


def save(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes the tensors under their keys."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    # what shares memory is refused by the library, which has no notion of a view
    save_file({key: t.clone() if t._is_view() else t for key, t in tensors.items()}, file)


def load(folder: Path, entry: TensorEntry) -> torch.Tensor:
    """As :meth:`macatensor.accuracy.records.Process.tensor`."""
    if entry.parts is not None:
        parts = {name: load(folder, part) for name, part in entry.parts.items()}
        try:
            return _together(entry, parts)
        except (RuntimeError, LookupError, TypeError, AttributeError) as error:
            files = sorted({part.file for part in entry.parts.values() if part.file})
            raise ValueError(
                f"accuracy: the parts {sorted(parts)} in {folder} ({', '.join(files)}) are no {entry.layout} tensor of "
                f"sizes {entry.shape}: {error}"
            ) from error
    if entry.file is None or entry.key is None:
        raise ValueError(
            f"accuracy: this tensor's elements were not recorded in {folder}; record with record_level=2"
        )
    try:
        dtype = dtype_named(entry.dtype)
        readable(entry.shape, entry.stride)
        held = stored(folder, entry.file, entry.key)
        if held is None:
            raise ValueError("the file has no such key")
        if dtype in _WRITTEN_AS and held.dtype == _WRITTEN_AS[dtype] and held.shape[-1:] == (2,):
            held = torch.view_as_complex(held.contiguous())
        return _laid_out(entry, dtype, held)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no memory for it
        raise ValueError(f"accuracy: cannot read {entry.key} of {folder / entry.file}: {error}") from error


def stored(folder: Path, name: str, key: str) -> torch.Tensor | None:
    """What a file of a record holds under a key; None if it has no such key.

    Raises:
        OSError, ValueError: the file is missing, lies elsewhere, or is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    path = member(folder, name)
    try:
        with safe_open(path, framework="pt") as file:
            held: torch.Tensor | None = file.get_tensor(key) if key in file.keys() else None
            return held
    except SafetensorError as error:
        raise ValueError(f"{path}: {error}") from error


def _laid_out(entry: TensorEntry, dtype: torch.dtype, held: torch.Tensor) -> torch.Tensor:
    """The elements that were read, with the strides of the entry."""
    if held.dtype != dtype or list(held.shape) != entry.shape:
        raise ValueError(
            f"it is {dtype_name(held.dtype)}{list(held.shape)}, recorded as {entry.dtype}{entry.shape}"
        )
    if entry.stride is None or list(held.stride()) == entry.stride:
        return held
    if any(s == 0 and n > 1 for s, n in zip(entry.stride, entry.shape)):
        kept = [n if s else 1 for s, n in zip(entry.stride, entry.shape)]
        narrow = held[tuple(slice(0, k) for k in kept)]
        return (
            torch.empty_strided(kept, entry.stride, dtype=dtype, device="cpu")
            .copy_(narrow)
            .expand(entry.shape)
        )
    return torch.empty_strided(entry.shape, entry.stride, dtype=dtype, device="cpu").copy_(held)


def _check_channels(parts: dict[str, torch.Tensor]) -> None:
    """PyTorch itself does not hold scales against the dimension that they are of."""
    values, scale, zero, axis = (parts[k] for k in ("values", "scale", "zero_point", "axis"))
    if (
        not 0 <= int(axis) < values.dim()
        or scale.shape != (values.shape[int(axis)],)
        or zero.shape != scale.shape
    ):
        raise ValueError(f"{list(scale.shape)} scales of values of sizes {list(values.shape)} at {int(axis)}")


def _together(entry: TensorEntry, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """A tensor of several parts: sparse_coo of indices and values, compressed ones of their two index tensors and
    values, jagged of values and offsets."""
    if entry.layout == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"],
            parts["values"],
            entry.shape,
            is_coalesced=True,
            check_invariants=True,
            device="cpu",
        )
    if entry.layout in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        compressed, plain = (
            ("crow_indices", "col_indices")
            if entry.layout in ("sparse_csr", "sparse_bsr")
            else ("ccol_indices", "row_indices")
        )
        return torch.sparse_compressed_tensor(
            parts[compressed],
            parts[plain],
            parts["values"],
            entry.shape,
            layout=getattr(torch, entry.layout),
            check_invariants=True,
            device="cpu",
        )
    if entry.layout == "jagged":
        return torch.nested.nested_tensor_from_jagged(parts["values"], parts["offsets"])
    if entry.layout == "nested":
        return torch.nested.as_nested_tensor([parts[str(i)] for i in range(len(parts))])
    if entry.layout == "_mkldnn":
        return parts["values"].to_mkldnn()
    if entry.layout == "quantized":
        scale, zero = parts["scale"], parts["zero_point"]
        if scale.dim():
            _check_channels(parts)
        if scale.dim() == 0:
            return torch._make_per_tensor_quantized_tensor(parts["values"], float(scale), int(zero))
        return torch._make_per_channel_quantized_tensor(parts["values"], scale, zero, int(parts["axis"]))
    raise ValueError(f"accuracy: no way to put a tensor of layout {entry.layout} together")
