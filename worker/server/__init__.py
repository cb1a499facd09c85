"""The worker's HTTP side: OpenAI's dialect plus what vLLM made customary, over one engine."""
