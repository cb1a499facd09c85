"""Which stored data depends on which pepper, and how it moves to the current one."""
