"""`tiergate up`: every process of the platform on one machine, started, watched and stopped together."""
