"""LoRA adapters: reading PEFT folders, and the stacked weights of resident adapters."""
