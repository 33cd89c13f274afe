"""The ground: the compiled library, tensors, streams, memory's metadata and the process's switches."""
