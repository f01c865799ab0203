"""Weights as transformers and vLLM load them: for notebook 10."""
