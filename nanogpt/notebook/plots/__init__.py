"""One function per figure: plain data in, a matplotlib Figure out. Never imports torch."""

from .charts import bytes_and_loss, ideas, lines, losses, timelines
from .equality import drafted, last_bits, margins, masks, precision, token_strips
from .pictures import arrows, attention_step, decode_step, ring, sharing, step_mask, triangle
from .speed import ladder, speeds, speedup_map, time_split, typing_race
from .style import format_ratio, to_apng, to_png
