"""What is wrong right now, as this gateway sees it, with what to do about it."""
