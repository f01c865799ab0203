"""Models of transformers: their caches by whatever name or type, their mode, their scripts."""

import json

import pytest
import torch
from torch import nn

from nanogpt import referee
from nanogpt.cli import main
from nanogpt.verify.architectures import small

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}


@pytest.mark.release
def test_a_model_keeps_its_mode():
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    assert referee(model, tokens=0).verdict in ("equal", "rounding")
    assert all(module.training for module in model.modules())


@pytest.mark.release
def test_an_encoder_is_refused_as_bidirectional():
    config = transformers.BertConfig(**SIZES)
    with pytest.raises(ValueError, match="is bidirectional"):
        referee(transformers.AutoModelForCausalLM.from_config(config))


class ListCache(nn.Module):
    """A model of transformers' style whose cache is a list: a pair of tensors for each layer.

    GPT-2 and others were so before transformers 4.36, and code on the hub still is.
    """

    def __init__(self, forgets=False):
        super().__init__()
        self.config = transformers.LlamaConfig(**SIZES)
        self.forgets = forgets
        generator = torch.Generator().manual_seed(0)
        self.tokens = nn.Embedding(40, 16)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.5)

    def get_output_embeddings(self):
        return self.tokens

    @property
    def device(self):
        return self.tokens.weight.device

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        if past_key_values is not None and not isinstance(past_key_values, list):
            raise TypeError(f"a list is expected, not {type(past_key_values).__name__}")
        x = self.tokens(input_ids)
        present = []
        for layer, qkv in enumerate(self.qkv):
            q, k, v = qkv(x).chunk(3, -1)
            if past_key_values is not None and not self.forgets:
                k = torch.cat([past_key_values[layer][0], k], 1)
                v = torch.cat([past_key_values[layer][1], v], 1)
            present.append((k, v))
            at = torch.arange(k.shape[1] - q.shape[1], k.shape[1])
            see = torch.arange(k.shape[1]) <= at[:, None]
            x = x + (q @ k.mT / 4).masked_fill(~see, -torch.inf).softmax(-1) @ v
        return Output(logits=x @ self.tokens.weight.T, past_key_values=present)


class Output(dict):
    """The output of a model of transformers: fields that are items as well."""

    __getattr__ = dict.get


@pytest.mark.parametrize("forgets", [False, True])
def test_a_cache_that_is_a_list_is_judged(forgets):
    report = referee(ListCache(forgets), tokens=0)
    assert report.verdict.sound is not forgets, report
    refused = {one.reason for one in report.not_offered}
    assert "it refuses this cache: a list is expected, not DynamicCache" in refused
    assert "its cache (list) has no reorder_cache" in refused


@pytest.mark.release
def test_a_layer_that_cannot_select_texts_offers_no_leaving_of_a_batch():
    """Mamba 2 in transformers 5.24: LinearAttentionLayer has no batch_select_indices."""
    report = referee(small("mamba2"), tokens=0)
    assert report.verdict.sound, report
    assert any("has no batch_select_indices" in one.reason for one in report.not_offered)


@pytest.mark.release
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_cache_is_handed_over_by_the_name_that_the_model_takes(name):
    """transformers 5.24 renamed the argument and the field; models in its style keep theirs."""
    llama = small("llama")
    Llama = type(llama.model)

    class Named(Llama):
        def read(self, ids, use_cache, held):
            out = Llama.forward(self, ids, use_cache=use_cache, **{llama.argument: held})
            return Output(logits=out.logits, **{name: getattr(out, llama.argument)})

        if name == "cache":

            def forward(self, ids, use_cache, cache=None):
                return self.read(ids, use_cache, cache)

        else:

            def forward(self, ids, use_cache, past_key_values=None):
                return self.read(ids, use_cache, past_key_values)

    model = Named(llama.model.config)
    model.load_state_dict(llama.model.state_dict())
    report = referee(model, tokens=0)
    assert report.verdict in ("equal", "rounding"), report
    ways = " ".join(finding.way for finding in report.findings)
    assert "static cache" in ways
    assert "rejected drafts" in ways


@pytest.mark.release
def test_a_static_cache_that_recorded_drafts_serves_no_other_text():
    subject = small("llama")
    usual = subject._allocated(1, 20, anew=False)
    recording = subject._allocated(1, 20, anew=True)
    assert recording is not usual
    assert subject._allocated(1, 20, anew=False) is usual


@pytest.mark.release
def test_a_compiled_model_of_transformers_is_judged_as_it_is():
    """Its forward takes any argument by its signature: a wrong name would be swallowed."""
    report = referee(torch.compile(small("llama").model, backend="eager"), tokens=0)
    assert report.verdict in ("equal", "rounding"), report


@pytest.mark.release
def test_no_tokens_are_taken_back_from_a_stateful_model():
    """transformers refuses to speculate with one."""
    llama = small("llama")
    llama.model._is_stateful = True
    report = referee(llama, tokens=0)
    assert not any("rewind" in finding.way for finding in report.findings)
    assert "stateful" in str(report)


@pytest.mark.release
def test_the_script_of_a_bug_of_transformers_runs_as_it_is(tmp_path, capsys):
    path = tmp_path / "report.json"
    assert main(["verify", "class", "mamba", "--tokens", "0", "--json", str(path)]) == 1
    (report,) = json.loads(path.read_text(encoding="utf-8"))
    code = next(f["code"] for f in report["findings"] if f["code"])
    capsys.readouterr()
    exec(compile(code, "script", "exec"), {})
    assert float(capsys.readouterr().out) > 1e-6
