"""Checks the kernels on a GPU: first their results, then their times as fractions of the machine's measured limits."""
