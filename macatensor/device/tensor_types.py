"""``torch.maca.FloatTensor``, ``FloatStorage`` and kin: the constructors of old programs, and types to ask
``isinstance`` of."""

from __future__ import annotations

import torch

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor


class _TensorType(type):
    """Classes that have no instances of their own: a tensor belongs to one by its dtype, as in torch.cuda."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, MacaTensor) and instance.dtype is cls.dtype

    def __call__(cls, *args: Value, **kwargs: Value) -> torch.Tensor:
        device = kwargs.pop("device", None)
        if kwargs:
            raise TypeError(f"{cls.__qualname__}() got an unexpected keyword argument {next(iter(kwargs))!r}")
        if device is not None and torch.device(device).type != "maca":
            raise RuntimeError(
                f"legacy constructor expects device type: maca but device type: {torch.device(device).type} was passed"
            )
        if not args:
            return torch.empty(0, dtype=cls.dtype, device="maca")
        if all(isinstance(n, int) and not isinstance(n, bool) for n in args):
            return torch.empty(args, dtype=cls.dtype, device="maca")
        if len(args) > 1:
            raise TypeError(f"{cls.__qualname__}() received an invalid combination of arguments")
        (data,) = args
        if isinstance(data, torch.Size):
            return torch.empty(data, dtype=cls.dtype, device="maca")
        if isinstance(data, torch.Tensor):
            if data.dtype is not cls.dtype or data.device.type != "maca":
                raise TypeError(
                    f"expected {cls} (got {data.type() if data.device.type != 'meta' else data.dtype})"
                )
            return data.detach()
        if isinstance(data, (float, complex, bool, str)):
            raise TypeError(f"new(): data must be a sequence (got {type(data).__name__})")
        return torch.tensor(data, dtype=cls.dtype, device="maca")

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"


def _type(name: str, element: torch.dtype) -> _TensorType:
    text = f"Sizes give uninitialized {element} memory, a sequence its values, no argument an empty tensor."
    # Tensor.type() reads the full name where other classes have their short one
    names = {"__doc__": text, "__module__": "torch.maca", "__qualname__": name, "dtype": element}
    return _TensorType(f"torch.maca.{name}", (), names)


def _storage_type(name: str, element: torch.dtype) -> Value:
    """The legacy class of a typed storage of the device: what ``Tensor.storage_type()`` says, made with a size or
    numbers, and for ``isinstance``."""
    names = {"__module__": "torch.maca", "dtype": element, "_dtype": element}
    names["__doc__"] = (
        f"A typed storage of {element} on the device: PyTorch's legacy class, for ``isinstance`` and old scripts."
    )
    base: Value = torch.storage._LegacyStorage
    return type(base)(name, (base,), names)


FloatTensor = _type("FloatTensor", torch.float32)
DoubleTensor = _type("DoubleTensor", torch.float64)
HalfTensor = _type("HalfTensor", torch.float16)
BFloat16Tensor = _type("BFloat16Tensor", torch.bfloat16)
ByteTensor = _type("ByteTensor", torch.uint8)
CharTensor = _type("CharTensor", torch.int8)
ShortTensor = _type("ShortTensor", torch.int16)
IntTensor = _type("IntTensor", torch.int32)
LongTensor = _type("LongTensor", torch.int64)
BoolTensor = _type("BoolTensor", torch.bool)

BFloat16Storage = _storage_type("BFloat16Storage", torch.bfloat16)
BoolStorage = _storage_type("BoolStorage", torch.bool)
ByteStorage = _storage_type("ByteStorage", torch.uint8)
CharStorage = _storage_type("CharStorage", torch.int8)
ComplexDoubleStorage = _storage_type("ComplexDoubleStorage", torch.complex128)
ComplexFloatStorage = _storage_type("ComplexFloatStorage", torch.complex64)
DoubleStorage = _storage_type("DoubleStorage", torch.float64)
FloatStorage = _storage_type("FloatStorage", torch.float32)
HalfStorage = _storage_type("HalfStorage", torch.float16)
IntStorage = _storage_type("IntStorage", torch.int32)
LongStorage = _storage_type("LongStorage", torch.int64)
ShortStorage = _storage_type("ShortStorage", torch.int16)

_KINDS = (_TensorType, type(torch.storage._LegacyStorage))
__all__ = [name for name, held in globals().items() if isinstance(held, _KINDS)]
