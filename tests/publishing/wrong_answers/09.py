"""Plausible wrong answers to the blanks of notebook 09, and a piece of what the judge says."""


def function(name, arguments, *lines):
    return "\n    ".join([f"def {name}({arguments}):", *lines])


MASK, NAME, QUEUE = "q_seq, q_pos, k_seq, k_pos", "parent, tokens", "needs, free, most"
CAUSAL = "k_pos[None, :] <= q_pos[:, None]"
SAME = "q_seq[:, None] == k_seq[None, :]"
COUNT = ("count = 0", "for need in needs[:most]:")

WRONG = {
    "ragged-mask": [
        (function("ragged_mask", MASK, f"return {CAUSAL}"), "compare the sequences"),
        (function("ragged_mask", MASK, f"return {SAME}"), "the future"),
        (
            function("ragged_mask", MASK, f"return ({SAME}) & (k_pos[None, :] < q_pos[:, None])"),
            "its own position",
        ),
        (function("ragged_mask", MASK, f"return (({SAME}) & ({CAUSAL})).T"), "a row for each"),
    ],
    "block-name": [
        (function("block_name", NAME, "return tuple(tokens)"), "the parent must be in the name"),
        (function("block_name", NAME, "return (parent, sum(tokens))"), "the order counts"),
        (function("block_name", NAME, "return [parent, tokens]"), "no dictionary takes"),
    ],
    "admitted": [
        (
            function("admitted", QUEUE, "return sum(n <= free for n in needs[:most])"),
            "add the needs up",
        ),
        (
            function(
                "admitted",
                QUEUE,
                *COUNT,
                "    if need <= free:",
                "        count, free = count + 1, free - need",
                "return count",
            ),
            "nobody overtakes",
        ),
    ],
}
