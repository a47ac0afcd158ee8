"""Model files in the Hugging Face format: where they lie, their tokenizer, their weights."""
