"""What production runs as services of its own and `tiergate up` runs on one machine."""
