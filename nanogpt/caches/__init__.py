"""Caches for longer texts and less memory: a ring buffer, pages, 8 bits. Used after notebook 07."""
