"""Karpathy's GPT: attention, the model, its two forms, checkpoints, exact mode. Knows no text."""
