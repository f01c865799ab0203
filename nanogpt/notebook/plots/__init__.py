"""One function per figure: plain data in, a matplotlib Figure out. Never imports torch."""

from .charts import bytes_and_loss, characters, ideas, lines, losses, recipes, timelines
from .equality import drafted, last_bits, margins, masks, precision, token_strips
from .pictures import arrows, attention_step, batch, decode_step, ring, sharing, step_mask, triangle
from .speed import (
    ladder,
    prefill_split,
    speculation_speed,
    speedup_map,
    time_split,
    tokens_per_pass,
    two_bars,
    typing_race,
)
from .style import format_ratio, to_apng, to_png
