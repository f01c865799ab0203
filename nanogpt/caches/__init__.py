"""Caches for longer texts and less memory: a ring, pages, 8 bits. Needed beyond notebook 07."""
