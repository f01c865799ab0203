"""Manual verdicts on architectures that the survey called a bug, or had no time for.

Each was compared in float64 (Inkling 2 in float32) with eager attention and sdpa, with its own
initialisation and with larger weights. A cause is named if a fix in that place made the difference
disappear. A kind with a real defect has a script in outputs/kinds/KIND_report.py, or shares another
kind's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Hand(str, Enum):
    """What a person found."""

    REAL = "real"  # a defect in transformers
    ARTEFACT = "artefact"  # caused by how the small model was built

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ByHand:
    """A verdict, its reason in one sentence, and the versions that were examined.

    `report` is the kind whose script shows it, if not its own.
    """

    verdict: Hand
    reason: str
    report: str = ""
    transformers: str = "5.24.0"
    torch: str = "2.14.1"

    def cell(self, transformers: str) -> str:
        """The table cell, for a survey of this version of transformers."""
        since = "" if transformers == self.transformers else f", examined in {self.transformers}"
        return f"{self.verdict}{since}: {self.reason}"


def _forgets(mixer: str) -> ByHand:
    """The reason that four kinds share."""
    reason = (
        f"`{mixer}.forward` starts the scan of two or more tokens from zeros, not from the cached"
        " state; decoding one token at a time is correct"
    )
    return ByHand(Hand.REAL, reason)


def _clamps(more: str) -> ByHand:
    """The reason that two kinds share."""
    reason = (
        "`mamba2_chunk_scan` clamps the time step at `time_step_min` in the prompt,"
        f" `mamba2_selective_state_update` does not in decoding; {more}"
    )
    return ByHand(Hand.REAL, reason)


_RECORDS = (
    "with sdpa, `create_causal_mask` drops the mask of a single token once a static cache records"
    " its past, as in assisted generation, so it attends to empty slots; eager is correct"
)

_HALF = (
    "in layers with a convolution and attention, a static cache's `crop` and `is_croppable` and a"
    " dynamic one's `batch_select_indices` are inherited from one half: rejected drafts leave the"
    " keys' counter behind, and texts that leave a batch stay in the convolution"
)

BY_HAND: dict[str, ByHand] = {
    "bamba": ByHand(
        Hand.REAL,
        "`BambaModel.forward` starts `position_ids` at 0 although the cache is not empty;"
        " `generate` passes them and is correct",
    ),
    "deepseek_v4": ByHand(
        Hand.REAL,
        "`DeepseekV4HCACache` inherits a `batch_select_indices` that leaves out the compressor's"
        " buffers, so a pass after texts have left a batch fails; `generate` does not call it",
    ),
    "falcon_mamba": _forgets("FalconMambaMixer"),
    "git": ByHand(
        Hand.REAL,
        "`GitModel.forward` widens the attention mask by an image's tokens although the cache has"
        " none, so left padding of texts without an image is lost",
    ),
    "gpt_neo": ByHand(
        Hand.REAL,
        "`GPTNeoSelfAttention._attn` places queries at the end of the keys, so a static cache"
        " longer than the window (256) masks the wrong tokens; a dynamic cache is correct",
    ),
    "inkling2_loop_text": ByHand(Hand.REAL, _HALF, report="inkling2_text"),
    "inkling2_text": ByHand(Hand.REAL, _HALF),
    "inkling_text": ByHand(
        Hand.REAL,
        "`InklingAttention.forward` keeps a static cache's counter, which `cache.update` then adds"
        " to, so relative positions are wrong after the first pass; and, as in `inkling2_text`, its"
        " layers leave out one half when drafts are rejected or texts leave a batch",
    ),
    "jamba": _forgets("JambaMambaMixer"),
    "lfm2": ByHand(Hand.REAL, _RECORDS, report="lfm2_moe"),
    "lfm2_moe": ByHand(Hand.REAL, _RECORDS),
    "mamba": _forgets("MambaMixer"),
    "minimax": ByHand(
        Hand.REAL,
        "`MiniMaxCache` inherits a `reorder_cache` that leaves out `linear_cache`, so beam search"
        " continues from other beams' states; greedy decoding is correct",
    ),
    "moshi": ByHand(
        Hand.REAL,
        "`MoshiModel.forward` has no sliding-window mask, only the cache drops tokens; equal up to"
        " `sliding_window` tokens, by default 3,000",
    ),
    "nemotron_h": _clamps("hardly visible with its own initialisation (3e-6 at a width of 2,048)"),
    "prophetnet": ByHand(
        Hand.REAL,
        "`ProphetNetNgramSelfAttention.get_predict_relative_pos_embeddings` permutes positions and"
        " heads wrongly, so a pass over two or more tokens looks ahead; decoding is correct",
    ),
    "rwkv": ByHand(
        Hand.REAL,
        "`RwkvSelfAttention` and `RwkvFeedForward` broadcast the state of a batch over its texts"
        " when they decode one token of each; a single text is correct",
    ),
    "xlstm": ByHand(
        Hand.ARTEFACT,
        "only at widths that are not a multiple of 128: `xLSTMConfig.qk_dim` and `v_dim` are"
        " rounded up, the layers' sizes are not; equal at 128, the width built now",
    ),
    "zamba": _forgets("ZambaMambaMixer"),
    "zamba2": _clamps("hardly visible with its own initialisation (3e-6 at a width of 2,048)"),
}


def report_name(kind: str) -> str:
    """The file name of the script that shows a real defect with transformers alone."""
    shared = BY_HAND[kind].report if kind in BY_HAND else ""
    return f"{shared or kind}_report.py"
