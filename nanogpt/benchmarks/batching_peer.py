"""Hugging Face's continuous batching of the same weights, in real time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..serving.request import Request
from .arrivals import RealClock
from .measures import Answer

NAME = "Hugging Face"
PAGE = 16  # positions of a block, as ours
INSTALL = "pip install -r requirements-peers.txt"
Serve = Callable[[list[Request]], dict[int, Answer]]


def continuous_batching(config: dict, weights: dict[str, Tensor], running: int) -> Serve:
    """A function that serves greedy requests with transformers' continuous batching.

    `config` and `weights` are those of an export. At most `running` texts share a step, and as many
    blocks are there as they can need. A step reads at most 256 tokens, which was its best on a CPU;
    attention is PyTorch's, as its paged kernels need a GPU. Prompts are cut, and beginnings shared:
    what our last scheme does. Raises ImportError without transformers 5.17 or later.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.generation import ContinuousBatchingConfig, GenerationConfig

        pages = running * -(-AutoConfig.for_model(**config).max_position_embeddings // PAGE)
        setting = {"page_size": PAGE, "num_blocks": pages, "max_requests_per_batch": running}
        how = ContinuousBatchingConfig(**setting, max_batch_tokens=256)
    except (ImportError, TypeError) as error:
        raise ImportError(f"{error}: it needs transformers 5.17 or later: {INSTALL}") from error
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    model.load_state_dict(weights)
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=None)

    def serve(requests: list[Request]) -> dict[int, Answer]:
        settings = {"generation_config": greedy, "continuous_batching_config": how}
        gc.collect()
        with quiet(), model.eval().continuous_batching_context_manager(**settings) as manager:
            return _serve(manager, requests)

    return serve


@contextmanager
def quiet() -> Iterator[None]:
    """Its warnings, of which one comes with every start, are not for the reader of a table."""
    logger = logging.getLogger("ContinuousBatchingLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _serve(manager, requests: list[Request]) -> dict[int, Answer]:
    """Hand in each request when it arrives. -> its tokens, and when each of them was there."""
    answers, clock = {}, RealClock()
    for request in sorted(requests, key=lambda request: request.arrival):
        clock.wait_until(request.arrival)
        manager.add_request(
            request.prompt.tolist(),
            request_id=str(request.id),
            max_new_tokens=request.max_new_tokens,
            record_timestamps=True,
        )
    names = {str(request.id): request.id for request in requests}
    while len(answers) < len(requests):
        got = manager.get_result(timeout=1)
        if got is None and not manager.is_running():
            raise RuntimeError(f"{NAME}: its thread ended with {len(answers)} answers")
        if got is not None and got.error:
            raise RuntimeError(f"{NAME}: request {got.request_id}: {got.error}")
        if got is not None and got.is_finished():
            moments = [moment - clock.start for moment in got.timestamps]
            answers[names[got.request_id]] = Answer(got.generated_tokens, moments)
    return answers
