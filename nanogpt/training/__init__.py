"""The training loop, its optimizers, its state, its clock."""
