"""A model's weights as other programs load them: Hugging Face's transformers, vLLM."""
