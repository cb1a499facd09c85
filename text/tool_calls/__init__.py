"""Tool calls in a model's text, as the common open models write them: one file per format."""
