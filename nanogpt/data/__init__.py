"""The corpus, its characters and its batches. Knows text and integers; nothing of models."""
