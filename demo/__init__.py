"""The bundled demo models: corpus, tokenizer, training, adapters and their evaluation."""
