"""LoRA adapters: reading PEFT folders, and the stacked weights of those that are resident."""
