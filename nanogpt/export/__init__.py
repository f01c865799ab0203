"""Export weights for transformers and vLLM: used in notebook 10."""
