"""One function per figure: plain data in, a matplotlib Figure out. Never imports torch."""

from .designs import arrows, bytes_and_loss, loss_by_position, masks, ring, sharing
from .equality import drafted, last_bits, margins, precision, token_strips
from .lesson import attention_step, decode_step, triangle
from .serving import gaps, load, losses_apart, scaling, step_mask, timelines
from .speed import (
    context_cost,
    ladder,
    per_token,
    prefill_split,
    speculation_speed,
    speedup_map,
    throughput,
    time_split,
    tokens_per_pass,
    two_bars,
    typing_race,
    update_cost,
)
from .style import format_ratio, to_apng, to_png
from .training import batch, characters, ideas, losses, recipes, schedules, singular_values
