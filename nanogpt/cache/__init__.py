"""Key/value caches, one kind a file. Knows tensors and positions; nothing of text."""
