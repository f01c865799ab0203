"""The training loop, its optimizers, its files and resuming, several processes."""
