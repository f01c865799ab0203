"""Karpathy's character-level GPT, with a KV cache in every head, at the same tokens.

Read the modules from the bottom up: config, runtime, data, cache, attention, model, generate,
train, verify, bench, plots, notebook, run. Each imports only what stands before it.
"""

__version__ = "0.1.0"
