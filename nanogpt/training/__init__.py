"""The fast trainer: recipes, Muon, stages of context, bfloat16, resuming, several processes.

For training beyond the lecture's plain loop. Start at `loop.train`.
"""
