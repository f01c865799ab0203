"""Plausible wrong answers to the blanks of notebook 02, and what the judge says of each."""

CACHE = """
class GrowingCache:
    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
"""


def cache(*lines):
    """A cache whose `update` has these lines."""
    return CACHE + "\n".join(f"        {line}" for line in lines) + "\n"


JOIN = "k, v = torch.cat([self.k, k], dim=1), torch.cat([self.v, v], dim=1)"
KEEP = "self.k, self.v, self.pos = k, v, pos"
FIRST = f"if self.k is None: {KEEP}; return k, v, pos"

WRONG = {
    "who-sees-whom": [
        (
            "def who_sees_whom(q_pos, k_pos):\n"
            "    return torch.ones(len(q_pos), len(k_pos), dtype=torch.bool).tril()",
            "must see the key at 1: compare positions",
        ),
        (
            "def who_sees_whom(q_pos, k_pos):\n    return k_pos[None, :] <= q_pos[:, None]",
            "position -1 is an empty slot",
        ),
        (
            "def who_sees_whom(q_pos, k_pos):\n    return k_pos[None, :] < q_pos[:, None]",
            "the query at 3 must see the key of its own position",
        ),
        (
            "def who_sees_whom(q_pos, k_pos):\n"
            "    return torch.ones(len(q_pos), len(k_pos), dtype=torch.bool)",
            "which is the future",
        ),
        (
            "def who_sees_whom(q_pos, k_pos):\n    return k_pos[:, None] <= q_pos[None, :]",
            "a row for each query",
        ),
    ],
    "growing-cache": [
        (
            cache(FIRST, JOIN, "self.pos = torch.cat([self.pos, pos])", "return k, v, self.pos"),
            "the earlier ones were not kept",
        ),
        (
            cache(FIRST, JOIN.replace("dim=1", "dim=0"), KEEP, "return k, v, pos"),
            "join along the dimension of the tokens",
        ),
        (
            cache(
                FIRST,
                "k, v = torch.cat([k, self.k], dim=1), torch.cat([v, self.v], dim=1)",
                "pos = torch.cat([pos, self.pos])",
                KEEP,
                "return k, v, pos",
            ),
            "the newest token comes last",
        ),
        (
            cache(FIRST, JOIN, KEEP, "return k, v, pos"),
            "positions are kept as well",
        ),
    ],
    "positions-read": [
        (
            "def positions_read(prompt_length, step):\n"
            "    return torch.arange(prompt_length + step)",
            "only the newest token is read",
        ),
        (
            "def positions_read(prompt_length, step):\n"
            "    return torch.arange(prompt_length) if step == 0 else torch.tensor([0])",
            "forgets the prompt",
        ),
        (
            "def positions_read(prompt_length, step):\n"
            "    if step == 0:\n"
            "        return torch.arange(prompt_length)\n"
            "    return torch.tensor([prompt_length + step])",
            "one too far",
        ),
        (
            "def positions_read(prompt_length, step):\n"
            "    if step == 0:\n"
            "        return torch.arange(prompt_length)\n"
            "    return prompt_length + step - 1",
            "also for a single position",
        ),
    ],
    "bytes-per-token": [
        (
            "def bytes_per_token(n_layer, n_head, head_size, itemsize):\n"
            "    return n_layer * n_head * head_size * itemsize",
            "the keys alone",
        ),
        (
            "def bytes_per_token(n_layer, n_head, head_size, itemsize):\n"
            "    return 2 * n_head * head_size * itemsize",
            "every layer has heads",
        ),
        (
            "def bytes_per_token(n_layer, n_head, head_size, itemsize):\n"
            "    return 2 * n_layer * n_head * head_size",
            "each of them takes itemsize bytes",
        ),
    ],
}
