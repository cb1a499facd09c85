"""What a GPU makes of the kernels: numbers first, then times as parts of the machine's own measured limits."""
