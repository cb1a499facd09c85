"""What hangs on which pepper, and how it comes to hang on the current one."""
