"""The corpus, its tokens and its batches. Knows text and integers; nothing of models."""
