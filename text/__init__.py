"""Text to token ids and back, without torch: for the gateway, which counts prompts, and the worker, which runs them."""
