"""The worker's HTTP side: OpenAI's API plus vLLM's customary extensions, over one engine."""
