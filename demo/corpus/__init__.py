"""A procedural corpus: short conversations with a known right answer."""
