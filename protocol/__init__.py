"""What crosses a process boundary, as plain typed data. Imports nothing of ours."""
