"""Backs up a running installation into one file, and restores it into an empty one."""
