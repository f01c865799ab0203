"""How is a longer text kept in less memory? Used after notebook 07.

Each is a `KVCache` of the lesson's cache.py, so it goes wherever one of those does. Start at
rolling.py.

    rolling  a ring buffer as long as the attention window
    paged    pages of fixed size, allocated on demand and shared between texts
    int8     8-bit keys and values: the only one that rounds
"""
