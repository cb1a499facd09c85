"""An installation in one file, taken while it runs, and put back into an empty one."""
