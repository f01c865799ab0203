"""One function per figure: plain data in, a matplotlib Figure out. Never imports torch."""

from .charts import dots, lines, losses, timelines
from .equality import last_bits, masks, token_strips
from .path import token_path
from .pictures import arrows, attention_step, decode_step, heads, ring, triangle
from .speed import speedup_map, typing_race
from .style import for_phone, format_ratio, to_apng, to_png
