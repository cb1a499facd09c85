"""LoRA adapters: one name with a variant for each base model it was trained for."""
