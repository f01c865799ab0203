"""The fast trainer: recipes, Muon, stages of context, bfloat16, resuming, several processes.

For whoever trains more than the lecture's plain loop does. `loop.train` is the door.
"""
