"""One function per figure: plain data in, a matplotlib Figure out. Never imports torch."""

from .designs import arrows, bytes_and_loss, loss_by_position, masks, ring, sharing
from .engines import ladder, speculation_speed, throughput, time_split, tokens_per_pass
from .equality import drafted, last_bits, margins, precision, token_strips
from .lesson import attention_step, decode_step, triangle
from .serving import (
    gaps,
    load,
    losses_apart,
    scaling,
    step_mask,
    timelines,
)
from .speed import (
    context_cost,
    per_token,
    prefill_split,
    speedup_map,
    two_bars,
    typing_race,
    update_cost,
)
from .style import format_ratio, to_apng, to_png
from .training import (
    batch,
    characters,
    ideas,
    losses,
    recipes,
    schedules,
    singular_values,
)
