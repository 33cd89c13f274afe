"""Recording calls, their tensors and stacks."""

# The C parts of all modules here are configured by this one.
from macatensor.accuracy.recording import describe as describe
