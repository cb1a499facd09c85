"""The engine: what runs next (pure) and the step loop that runs it (torch)."""
