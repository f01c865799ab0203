"""Several processes: torchrun for training, Ray for writing many texts."""
