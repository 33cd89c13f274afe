"""Which of the library's ways computes a product or a convolution: its own choice, or one that was measured."""
