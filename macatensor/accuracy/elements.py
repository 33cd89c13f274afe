"""Whole tensors in safetensors files: what of a tensor is written, and how it is put together again."""

from __future__ import annotations

from pathlib import Path

import torch

from macatensor.accuracy.records import TensorEntry

# dtypes that the file format has no name for, and the view of them that is written
_WRITTEN_AS = {torch.complex128: torch.float64, torch.complex32: torch.float16}


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """``torch.float32`` of ``float32``."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"accuracy: {name!r} is no dtype of this PyTorch")
    return dtype


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """A strided tensor as it is written: on the host, contiguous, complex numbers that have no name as pairs."""
    held = tensor.detach()
    if held._is_zerotensor():  # a derivative that is zero, without memory
        held = torch.zeros(held.shape, dtype=held.dtype)
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
        return _together(entry, {name: load(folder, part) for name, part in entry.parts.items()})
    if entry.file is None or entry.key is None:
        raise ValueError("accuracy: this tensor's elements were not recorded; record with record_level=2")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / entry.file, framework="pt") as file:
            held: torch.Tensor = file.get_tensor(entry.key)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"accuracy: cannot read {entry.key} of {folder / entry.file}: {error}") from error
    dtype = dtype_named(entry.dtype)
    if dtype in _WRITTEN_AS:
        held = torch.view_as_complex(held)
    if held.dtype != dtype or list(held.shape) != entry.shape:
        raise ValueError(
            f"accuracy: {entry.key} of {folder / entry.file} is {dtype_name(held.dtype)}{list(held.shape)}, "
            f"recorded as {entry.dtype}{entry.shape}"
        )
    if entry.stride is None or list(held.stride()) == entry.stride:
        return held
    if any(s == 0 and n > 1 for s, n in zip(entry.stride, entry.shape)):
        kept = [n if s else 1 for s, n in zip(entry.stride, entry.shape)]
        narrow = held[tuple(slice(0, k) for k in kept)]
        return torch.empty_strided(kept, entry.stride, dtype=dtype).copy_(narrow).expand(entry.shape)
    return torch.empty_strided(entry.shape, entry.stride, dtype=dtype).copy_(held)


def _together(entry: TensorEntry, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """A tensor of several parts: sparse_coo of indices and values, compressed ones of their two index tensors and
    values, jagged of values and offsets."""
    if entry.layout == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"], parts["values"], entry.shape, is_coalesced=True, check_invariants=True
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
        )
    if entry.layout == "jagged":
        return torch.nested.nested_tensor_from_jagged(parts["values"], parts["offsets"])
    if entry.layout == "nested":
        return torch.nested.as_nested_tensor([parts[str(i)] for i in range(len(parts))])
    if entry.layout == "_mkldnn":
        return parts["values"].to_mkldnn()
    if entry.layout == "quantized":
        scale, zero = parts["scale"], parts["zero_point"]
        if scale.dim() == 0:
            return torch._make_per_tensor_quantized_tensor(parts["values"], float(scale), int(zero))
        return torch._make_per_channel_quantized_tensor(parts["values"], scale, zero, int(parts["axis"]))
    raise ValueError(f"accuracy: no way to put a tensor of layout {entry.layout} together")
