"""A procedural corpus: short conversations whose right answer is known."""
