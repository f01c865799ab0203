"""What was replaced before the whitelist was imported is seen, too."""

import subprocess
import sys

import pytest

from nanogpt.files import ROOT

REPLACED = """
import nanogpt
kind = nanogpt.{kind}
plain = kind.forward
kind.forward = lambda self, *args, **kwargs: plain(self, *args, **kwargs)
from nanogpt.decoder.standard import not_standard
from nanogpt import GPT, GPTConfig, Decoder, DecoderConfig
shape = dict(vocab_size=9, block_size=8, n_layer=1, n_head=2, n_embd=8)
print(not_standard(GPT(GPTConfig(**shape))) or not_standard(Decoder(DecoderConfig(**shape))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Head", "CausalSelfAttention"])
def test_a_function_that_was_replaced_before_is_a_difference(kind):
    command = [sys.executable, "-c", REPLACED.format(kind=kind)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert f"this model has another {kind}.forward" in done.stdout, done.stderr
