"""Plausible wrong answers to the blanks of notebook 08, and what the judge says of each."""

WRONG = {
    "key-head": [
        (
            "def key_head(h, n_head, n_kv_head):\n    return h % n_kv_head",
            "you deal the heads out like cards",
        ),
        (
            "def key_head(h, n_head, n_kv_head):\n    return h // n_kv_head",
            "there are only 0 to 0",
        ),
        (
            "def key_head(h, n_head, n_kv_head):\n    return h / (n_head // n_kv_head)",
            "divide with //",
        ),
    ],
    "turn": [
        (
            "def turn(a, b, angle):\n"
            "    cos, sin = math.cos(angle), math.sin(angle)\n"
            "    return a * cos + b * sin, b * cos - a * sin",
            "it turned clockwise",
        ),
        (
            "def turn(a, b, angle):\n"
            "    a = a * math.cos(angle) - b * math.sin(angle)\n"
            "    b = a * math.sin(angle) + b * math.cos(angle)\n"
            "    return a, b",
            "use the new a in place of the old one",
        ),
        (
            "def turn(a, b, angle):\n"
            "    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))\n"
            "    return a * cos - b * sin, a * sin + b * cos",
            "is the angle in radians",
        ),
    ],
    "every-second": [
        (
            "def every_second(q_pos, k_pos, window=None, sinks=0):\n"
            "    places = torch.arange(len(k_pos))\n"
            "    return visible(q_pos, k_pos) & (places % 2 == 0)",
            "it counts places in the array",
        ),
        (
            "def every_second(q_pos, k_pos, window=None, sinks=0):\n"
            "    gap = q_pos[:, None] - k_pos[None, :]\n"
            "    return (gap >= 0) & (gap % 2 == 0)",
            "a query sees an empty slot",
        ),
        (
            "def every_second(q_pos, k_pos, window=None, sinks=0):\n"
            "    gap = q_pos[:, None] - k_pos[None, :]\n"
            "    return (k_pos >= 0) & (gap % 2 == 0)",
            "a query sees a character after its own",
        ),
        (
            "def every_second(q_pos, k_pos, window=None, sinks=0):\n"
            "    return visible(q_pos, k_pos) & (k_pos % 2 == 0)",
            "query 7 sees [0, 2, 4, 6]",
        ),
    ],
    "slot-of": [
        (
            "def slot_of(position, window, sinks=0):\n    return position % (sinks + window)",
            "position 6 overwrites position 0, a sink",
        ),
        (
            "def slot_of(position, window, sinks=0):\n    return position % window",
            "position 4 overwrites position 0, a sink",
        ),
        (
            "def slot_of(position, window, sinks=0):\n"
            "    return position if position < sinks else sinks + position % window",
            "the ring begins after the sinks",
        ),
    ],
}
