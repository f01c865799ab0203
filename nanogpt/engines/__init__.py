"""Faster ways of decoding the same tokens: the ladder, one family of rungs a file."""
