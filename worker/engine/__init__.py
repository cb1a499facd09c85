"""The engine: the scheduler that decides what runs next (pure) and the step loop that runs it (torch)."""
