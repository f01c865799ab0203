"""Faster decoding with identical output, up to the machine's limit: notebooks 06, 07 and 12."""
