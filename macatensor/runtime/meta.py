"""Meta: what a tensor is apart from its memory. One object for each distinct value, compared by identity."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from macatensor.runtime.callers import repeat_warnings

_UNCOUNTABLE = 1 << 63


def _half_complex() -> torch.Tensor:
    """At the first such tensor of a process PyTorch says that few operators take it."""
    return torch.empty(0, dtype=torch.complex32, device="cpu")


class Meta:
    """Sizes, strides (elements), dtype and lazy bits of a tensor.

    Interned by :func:`meta_of`: equal metas are the same object, so a plan key hashes and compares pointers.

    No Meta reaches before its first element or further than 63 bits count bytes. Raises RuntimeError for a negative
    size or stride (PyTorch has no such tensors) and for sizes and strides whose elements or bytes are more.
    """

    __slots__ = (
        "size",
        "stride",
        "dtype",
        "conj",
        "neg",
        "numel",
        "itemsize",
        "extent",
        "dense",
        "__weakref__",
    )
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    conj: bool
    neg: bool
    numel: int
    itemsize: int
    extent: int  # elements from the first to past the last that strides reach
    dense: bool  # neither gaps nor elements that share memory

    def __init__(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, conj: bool, neg: bool
    ):
        if dtype is torch.complex32:
            repeat_warnings(_half_complex)
        self.size = size
        self.stride = stride
        self.dtype = dtype
        self.conj = conj
        self.neg = neg
        self.itemsize = dtype.itemsize
        numel = 1
        extent = 1
        for n, step in zip(size, stride):
            numel *= n
            extent += (n - 1) * step
        if numel == 0:
            extent = 0
        self.numel = numel
        self.extent = extent
        if (
            len(size) != len(stride)
            or numel >= _UNCOUNTABLE
            or extent * self.itemsize >= _UNCOUNTABLE
            or min(size, default=0) < 0
            or min(stride, default=0) < 0
        ):
            raise overflow(size, stride)
        self.dense = numel == self.extent and self._no_overlap()

    def _no_overlap(self) -> bool:
        expected = 1
        for step, n in sorted((s, n) for n, s in zip(self.size, self.stride) if n != 1):
            if step != expected:
                return self.numel == 0
            expected *= n
        return True

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to past the last."""
        return self.extent * self.itemsize

    def bytes_from(self, offset: int) -> int:
        """Bytes that memory must have for a tensor ``offset`` elements into it; 0 for one without elements.

        Raises RuntimeError for a negative offset and for more bytes than 63 bits count.
        """
        if offset < 0:
            raise RuntimeError(f"Tensor: invalid storage offset {offset}")
        needed = (offset + self.extent) * self.itemsize if self.numel else 0
        if needed >= _UNCOUNTABLE or offset >= _UNCOUNTABLE:
            raise overflow(self.size, self.stride)
        return needed

    def check_within(self, held: int, offset: int) -> None:
        """Raises RuntimeError where a tensor ``offset`` elements into ``held`` bytes of memory would leave them."""
        needed = self.bytes_from(offset)
        if needed > held:
            raise RuntimeError(
                f"setStorage: sizes {list(self.size)}, strides {list(self.stride)}, storage offset {offset}, and "
                f"itemsize {self.itemsize} requiring a storage size of {needed} are out of bounds for storage of size "
                f"{held}"
            )

    def overlaps_itself(self) -> bool:
        """Some two elements certainly share memory (an expanded dimension), as PyTorch's internal-overlap test."""
        return self.numel > 0 and any(n > 1 and step == 0 for n, step in zip(self.size, self.stride))

    def meets(self, offset: int, other: Meta, other_offset: int) -> bool:
        """Some element, ``offset`` into memory, certainly lies in ``other`` there: PyTorch's test of overlaps, which
        lets strided tensors pass whose elements may lie between each other's."""
        if not (self.numel and other.numel and self.dense and other.dense):
            return self is other and offset == other_offset and self.numel > 0
        start, other_start = offset * self.itemsize, other_offset * other.itemsize
        return start < other_start + other.nbytes and other_start < start + self.nbytes

    def __reduce__(self) -> tuple[object, ...]:  # copies and what is unpickled are interned, too
        return meta_of, (self.size, self.stride, self.dtype, self.conj, self.neg)

    def __repr__(self) -> str:
        bits = (" conj" if self.conj else "") + (" neg" if self.neg else "")
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.size)} strides {list(self.stride)}{bits}"


def overflow(size: tuple[int, ...], stride: tuple[int, ...]) -> RuntimeError:
    """PyTorch's error for sizes and strides whose bytes cannot be counted."""
    return RuntimeError(
        f"Storage size calculation overflowed with sizes={list(size)} and strides={list(stride)}"
    )


_Key = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]
_interned: weakref.WeakValueDictionary[_Key, Meta] = weakref.WeakValueDictionary()


def meta_of(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, conj: bool = False, neg: bool = False
) -> Meta:
    """The one Meta of these values."""
    key = (size, stride, dtype, conj, neg)
    meta = _interned.get(key)
    if meta is None:
        # setdefault: two threads may come here at once
        meta = _interned.setdefault(key, Meta(size, stride, dtype, conj, neg))
    return meta


def meta_of_tensor(tensor: torch.Tensor) -> Meta:
    """The Meta of any strided tensor."""
    return meta_of(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())


def set_lazy_bits(tensor: torch.Tensor, meta: Meta) -> torch.Tensor:
    """``tensor`` itself, marked as the conjugate or negative that ``meta`` is."""
    if meta.conj:
        torch._C._set_conj(tensor, True)
    if meta.neg:
        torch._C._set_neg(tensor, True)
    return tensor


def contiguous_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements; dimensions of extent 0 count as 1, as in PyTorch."""
    strides = []
    step = 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def contiguous_meta(size: Sequence[int], dtype: torch.dtype) -> Meta:
    """The Meta of a contiguous tensor."""
    size = tuple(size)
    return meta_of(size, contiguous_strides(size), dtype)
