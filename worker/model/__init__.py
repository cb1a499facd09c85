"""Models from Hugging Face folders, as plain tensors and the operations of `kernels`."""
