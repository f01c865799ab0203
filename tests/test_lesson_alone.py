"""With the folders of the package deleted, what the lesson is about still works."""

import shutil
import subprocess
import sys
from pathlib import Path

import nanogpt

PROGRAM = """
import torch
import nanogpt
from nanogpt import GPT, GPTConfig, DynamicCache, StaticCache
from nanogpt import compare, fit
from nanogpt.data import CharTokenizer, Corpus
from nanogpt.generation import complete, generate
from nanogpt.timing import time_pair

text = "the quick brown fox jumps over the lazy dog.\\n" * 200
corpus = Corpus(text, "fox", "0")
tokenizer = CharTokenizer(text)
model = GPT(GPTConfig(len(tokenizer), block_size=16, n_layer=1, n_head=2, n_embd=8))
history = fit(model, corpus, steps=3, batch_size=4, eval_every=3, eval_batches=1)
prompt = tokenizer.encode("the")[None]
caches = (None, DynamicCache, StaticCache)
texts = [complete(model, prompt, 9, cache=cache) for cache in caches]
assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])
assert compare(model, prompt, 9, None, DynamicCache).equal
ways = [lambda: generate(model, prompt, 5, cache=c) for c in (None, DynamicCache)]
assert time_pair(*ways, repeats=2)
print(nanogpt.__file__, history["step"])
"""


def test_the_files_alone_train_write_compare_and_time(tmp_path):
    package = tmp_path / "nanogpt"
    package.mkdir()
    for path in Path(nanogpt.__file__).parent.glob("*.*"):
        shutil.copy(path, package)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"{package / '__init__.py'} [0, 3]")
