"""The referee for this package's models and for servers, besides everything it takes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..kv_referee.report import Report
from ..kv_referee.trial import referee as judge
from ..model import LanguageModel
from .ours import Ours
from .server import referee_server


def referee(
    model: Any,
    *,
    caches: Sequence[Callable[..., Any]] | None = None,
    **options: Any,
) -> Report:
    """Compare every way of reading a text through the model's cache with one plain pass.

    `model` is a GPT or Decoder, a server's URL, or what kv_referee takes: a transformers model, or
    any object with plain(ids) and start(rows), as nanogpt/kv_referee/README.md describes.

    `caches` are the cache classes to try with a GPT, by default this package's. Heads and caches
    may be your own: GPT(config, head=Head) and caches=[MyCache], built as `kv_cache` does.
    `options` are those of kv_referee; a server takes `seed`, `seconds` and `known`.

    Raises ValueError for any other object and for a model without a cache, ConnectionError for a
    server that does not answer.
    """
    if caches is not None:
        classes = isinstance(caches, (list, tuple)) and caches and all(map(callable, caches))
        if not isinstance(model, LanguageModel) or not classes:
            raise ValueError(f"caches={caches!r}: pass classes, like [DynamicCache], and a GPT")
        return judge(Ours(model, caches), **options)
    if hasattr(model, "ask") or isinstance(model, str) and "://" in model:
        named = {name: options[name] for name in ("seed", "seconds", "known") if name in options}
        return referee_server(model, **named)
    parts = ("blocks", "config", "modules")
    if isinstance(model, LanguageModel) or all(hasattr(model, name) for name in parts):
        return judge(Ours(model), **options)
    return judge(model, **options)
