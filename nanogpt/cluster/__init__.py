"""Several processes: torchrun for training, Ray for generating many texts."""
