"""Sparse tensors: indices and values that are tensors of the device, behind PyTorch's own layouts.

:class:`~macatensor.sparse.tensor.SparseMacaTensor` is what ``torch.sparse_coo`` is on maca. Its operators are Python over
kernels of dense tensors; what has none yet runs on the host, counted and refusable as for any operator.
"""
