"""Why a program on sparse or on jagged tensors may differ, as reasons.py has it: of a line, what was found, and why."""

from __future__ import annotations

_MORE = r"raises nothing and not "  # the device computes, and the host raises
_LACKS = "a layout that PyTorch's kernel for the CPU lacks"

OF_LAYOUTS: tuple[tuple[str, str, str], ...] = (
    # -- the host refuses -------------------------------------------------------------------------------------------
    ("", _MORE + r"NotImplementedError: \"\w+\" not implemented for '\w+'", "a dtype that PyTorch's kernel for the CPU lacks"),
    ("sampled_addmm", _MORE + r"RuntimeError: .* Expected self to be a floating-point or complex tensor, but got BFloat16",
     "a dtype that PyTorch's kernel for the CPU lacks"),
    ("_foreach_norm", _MORE + r"RuntimeError: linalg\.vector_norm: Expected a floating point or complex tensor as input\. Got Int",
     "a dense list: the device has norms of integers, as CUDA has"),
    ("sum", _MORE + r"RuntimeError: dtype of values \(Long\) must match dtype of sparse tensor \(\w+\)",
     "PyTorch gives an empty sum of integers two dtypes"),
    ("", _MORE + r"NotImplementedError: Could not run 'aten::\w+.*", "an operator that the CPU lacks for the layout"),
    ("", _MORE + r"NotImplementedError: Cannot access storage of Sparse(Csr)?TensorImpl", "PyTorch asks a sparse tensor for its one memory"),
    ("", _MORE + r"RuntimeError: \w+ expected sparse (row|column) compressed tensor layout but got \w+", _LACKS),
    ("", _MORE + r"RuntimeError: sparse compressed layout must be SparseCsr but got \w+", _LACKS),
    ("", _MORE + r"RuntimeError: unsupported tensor layout: \w+", _LACKS),
    ("", _MORE + r"RuntimeError: (torch\.)?\w+: (operation|computation on CPU is) not (supported|implemented) for .*", _LACKS),
    ("", _MORE + r"RuntimeError: MKL (Sparse doesn't support matrices with non-square blocks\.|error: .*)", "what the CPU's library lacks"),
    ("", _MORE + r"RuntimeError: .* INTERNAL ASSERT FAILED .*", "PyTorch fails an assertion of its own"),
    ("", _MORE + r"RuntimeError: \w+ requires coalesced input", "the device knows of more results that their elements are in order"),
    (r"\[", _MORE + r"RuntimeError: select\(\): no view exists for the given input, .*", "the device copies a row of more tensors"),
    (r"\*|mul", _MORE + r"RuntimeError: Expected result Tensor to be of format CSR", "PyTorch multiplies CSR by COO in one order alone"),
    ("out=", _MORE + r"RuntimeError: (torch\.copy_: only sparse compressed tensors with the same number of specified elements"
     r"|expand is unsupported for Sparse\w* tensors).*", "PyTorch fits an out= to the result of some operators only"),
    (r"\.contiguous\(", _MORE + r"RuntimeError: (unsupported memory format option Contiguous|Sparse [CB]S[RC] tensors .*)",
     "the device gives the tensor itself"),
    (r"\.(t|mT|H|mH|adjoint|transpose|movedim)_?\b", _MORE + r"RuntimeError: (sparse transpose: transposed dimensions must be|t\(\) expects a tensor with <= 2) sparse.*",
     "the device transposes dense dimensions, too, as PyTorch's permute does"),
    (r"transpose_", _MORE + r"RuntimeError: torch\.transpose_: in-place transposition is not supported .*",
     "of a dimension with itself, or of two of a batch"),
    (r"layout=torch\.strided", _MORE + r"RuntimeError: sparse_(coo|compressed)_to_sparse: conversion from \w+ to Strided .*",
     "a dense tensor of any layout"),
    (r"\+|add|sub", _MORE + r"RuntimeError: (torch\.copy_: copy of sparse compressed tensors having different block sizes|output with shape \[0\]) .*",
     "PyTorch cannot copy its own empty sum"),
    (r"\+|add|sub", r"is \(torch\.(sparse_\w+), \S+ \[\(\(\d+, \d+\), .* and not \(torch\.\1, \S+ \[\(\(\d+, \d+\), \S+ \(\(\d+,\), .*",
     "PyTorch's sum of batches has indices of a batch of rows and of columns of none"),
    ("addm[mv]", _MORE + r"RuntimeError: result type \w+ can't be cast to the desired output type \w+",
     "PyTorch rounds a fraction to the dtype of integers where there are elements, and refuses it where there is none"),
    ("dot_product_attention", r"is computed on the host: aten\.bmm\.default", "integers of which there are none: a product of two dtypes"),
    ("dot_product_attention", _MORE + r"RuntimeError: to_padded_tensor: at least one constituent tensor should have non-zero numel",
     "PyTorch has no attention of no elements"),
    # -- the device refuses -----------------------------------------------------------------------------------------
    (r"resize_", r"raises RuntimeError: resize_ got sparse_(csr|csc|bsr|bsc) of .*", "of PyTorch's result the indices are none of a tensor"),
    (r"copy_", r"raises RuntimeError: copy_ got a tensor of .*", "of PyTorch's result the indices may lie beyond its sides"),
    (r"setattr", r"raises RuntimeError: cannot assign a tensor of layout .*", "a tensor of the device keeps its layout"),
    (r"dropout", r"raises NotImplementedError: \"native_dropout\" not implemented for '\w+'", "as on CUDA, whose kernel is of real numbers"),
    (r"dot_product_attention", r"raises RuntimeError: No viable backend .* got \(\d+, \d+, j\d+, \d+, \d.*", "PyTorch's result lacks a dimension"),
    (r"dot_product_attention", r"raises RuntimeError: .*SymIntArrayRef expected to contain only concrete integers",
     "complex numbers of which there are none: PyTorch lets attention of them pass"),
    (r"dot_product_attention", r"is \(torch\.jagged, torch\.bool, .* and not \(torch\.jagged, torch\.int64, .*\(0, .*",
     "booleans of which there are none: PyTorch has attention of them in int64, and refuses any others"),
    # -- both refuse ------------------------------------------------------------------------------------------------
    (r"nested\.narrow", r"raises TypeError: .*'SymInt' and 'MacaTensor' and not RuntimeError: view\(\): cannot view shape .*",
     "both refuse a tensor that is jagged already, in other steps"),
    (r"dot_product_attention", r"raises RuntimeError: No viable backend .* and not AttributeError: 'NestedIntNode' .*",
     "both refuse; PyTorch stumbles over its own sizes"),
    # -- numbers in which PyTorch is wrong ----------------------------------------------------------------------------
    (r"resize_as_\(", r"other numbers of .*", "a dense tensor that grows: PyTorch leaves what is new unwritten"),
    (r"mul\(.*out=", r"is \(torch\.sparse_coo, .* and not \(torch\.sparse_coo, .*",
     "of factors that are not coalesced PyTorch keeps as zeros what the other one lacks"),
    ("addmm", r"is \(torch\.sparse_csc, \S+ \[\(\((\d+),\), .* and not \(torch\.sparse_csc, \S+ \[\(\(\1,\), .*",
     "PyTorch's sum of two CSC matrices has fewer elements than its own columns say"),
    ("layer_norm", r"far numbers of .* Greatest absolute difference: nan at .*", "PyTorch's variance of the largest numbers overflows"),
    (r"^(a\[\d+\])\.addmm_\(\1, ", r"other numbers of .*", "PyTorch reads what it has just overwritten"),
    (r"dot_product_attention", r"far numbers of .* Greatest absolute difference: nan at .*",
     "PyTorch's kernel for the CPU gives zeros where a row of scores is NaN, unlike its own plain attention"),
    (r"mean\(", r"far numbers of torch\.complex\d+: .*[(]nan[+-]infj\) but got .*[+-]infj\).*",
     "PyTorch divides by a complex number, and so loses the real part beside an infinite imaginary one"),
)  # fmt: skip
