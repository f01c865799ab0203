"""Key/value caches, one design a file. Knows tensors and positions; nothing of models or text."""
