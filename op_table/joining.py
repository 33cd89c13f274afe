"""Tensors put side by side. Inputs of several dtypes are converted on the way."""

from op_table.row import ALL, also, composite, kernel

kernel("cat", ALL)
kernel("stack", ALL)
kernel("_stack", ALL, kernel="stack")
kernel("block_diag", ALL)
composite("_chunk_cat", why="pads and cat; only sharded optimizers use it")

also("cat", meta="cat")
also("stack _stack", meta="stack")
also("block_diag", meta="block_diag")
also("cat stack _stack block_diag", moves=("tensors",))
