"""The exercises' checks as data: reference solutions, cases and known mistakes for one harness.

`exercise` says what a check is; `observing`, `comparing`, `finding` and `words` are the harness.
The other modules hold the tables, one for each exercise or a few related ones. A check compares
observed behaviour, never the form of the code.
"""

from __future__ import annotations

from .caches import KV_CACHE, STATIC_KV_CACHE
from .costs import FASTEST, MULTIPLICATIONS, STEP_BYTES
from .distance import TOTAL_VARIATION
from .drafts import MY_DRAFT
from .exactness import PADDED_ATTENTION, PAIRWISE, ROW_BY_ROW
from .exercise import Exercise
from .export import FLIP, FOLD
from .gates import GATED
from .gradients import ACCUMULATE, AVERAGE
from .graphs import FIXED_ATTENTION
from .groups import KEY_HEAD, SHARE_KEYS
from .head import HEAD
from .loop import LOOP
from .masked import MASKED_HEAD
from .memories import ASKED_HEAD, ONE_TEXT, READ_ON
from .passes import EXPECTED_GAIN, TOKENS_GAINED
from .patterns import EVERY_SECOND
from .repairs import CHECK_LENGTH, REPAIRED_BASELINE, REPAIRED_LOOP
from .rings import SLOT_OF
from .rounding import ROUND_ROW
from .sampling import SAMPLE
from .serving import ADMITTED, BLOCK_NAME, RAGGED_MASK
from .step import ONE_STEP
from .times import LATENCY, SPEEDUP
from .training import LEARNING_RATE, MFU
from .turns import TURN_ARROW
from .verdicts import MARGIN, SLY_CACHE, VERDICT
from .visibility import VISIBLE
from .weights import ATTENTION_WEIGHTS

EXERCISES: dict[str, Exercise] = {
    "attention_weights": ATTENTION_WEIGHTS,
    "one_step": ONE_STEP,
    "visible": VISIBLE,
    "KVCache": KV_CACHE,
    "Head": HEAD,
    "sample": SAMPLE,
    "generate_with_cache": LOOP,
    "StaticKVCache": STATIC_KV_CACHE,
    "verdict": VERDICT,
    "SlyCache": SLY_CACHE,
    "margin": MARGIN,
    "MaskedHead": MASKED_HEAD,
    "repaired_loop": REPAIRED_LOOP,
    "read_on": READ_ON,
    "repaired_baseline": REPAIRED_BASELINE,
    "AskedHead": ASKED_HEAD,
    "check_length": CHECK_LENGTH,
    "one_text": ONE_TEXT,
    "FixedAttention": FIXED_ATTENTION,
    "multiplications": MULTIPLICATIONS,
    "latency": LATENCY,
    "paired_speedup": SPEEDUP,
    "step_bytes": STEP_BYTES,
    "fastest": FASTEST,
    "round_row": ROUND_ROW,
    "tokens_gained": TOKENS_GAINED,
    "total_variation": TOTAL_VARIATION,
    "expected_gain": EXPECTED_GAIN,
    "MyDraft": MY_DRAFT,
    "key_head": KEY_HEAD,
    "turn_arrow": TURN_ARROW,
    "every_second": EVERY_SECOND,
    "slot_of": SLOT_OF,
    "ragged_mask": RAGGED_MASK,
    "block_name": BLOCK_NAME,
    "admitted": ADMITTED,
    "fold": FOLD,
    "flip": FLIP,
    "average": AVERAGE,
    "learning_rate": LEARNING_RATE,
    "accumulate": ACCUMULATE,
    "mfu": MFU,
    "pairwise": PAIRWISE,
    "row_by_row": ROW_BY_ROW,
    "padded_attention": PADDED_ATTENTION,
    "share_keys": SHARE_KEYS,
    "gated": GATED,
}
