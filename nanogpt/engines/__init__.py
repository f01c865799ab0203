"""Faster ways to the same tokens, up to the limit of the machine: for notebooks 06, 07 and 12."""
