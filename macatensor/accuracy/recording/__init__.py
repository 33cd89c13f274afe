"""Recording calls, their tensors and stacks."""
