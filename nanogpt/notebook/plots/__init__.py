"""One function per figure: plain data in, a matplotlib Figure out. Never imports torch."""

from .designs import arrows, bytes_and_loss, loss_by_position, masks, ring, sharing
from .engines import drafted, ladder, speculation_speed, throughput, time_split, tokens_per_pass
from .equality import last_bits, margins, precision, token_strips
from .lesson import attention_steps, decode_step, triangle
from .serving import (
    block_tables,
    gaps,
    load,
    losses_apart,
    request_lines,
    scaling,
    step_cost,
    step_mask,
    step_parts,
    timelines,
    wiring,
)
from .speed import (
    cache_bytes,
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
    look_ups,
    losses,
    recipes,
    schedules,
    singular_values,
)
