"""Damaged, foreign and hostile files end in one line, soon, and in little memory."""

from __future__ import annotations

import shlex
import struct
import tracemalloc
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from pretrained_fixtures import change_json, gguf_tensors, write_gguf
from safetensors.torch import load_file, save_file

import nanogpt.pretrained.assemble
from nanogpt import load_pretrained
from nanogpt.pretrained.gguf_file import read_gguf
from nanogpt.pretrained.needs import PretrainedError

EMBEDDING = "model.embed_tokens.weight"


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def changed(change):
    """Writes the tensors again behind a change of their dictionary."""

    def damage(folder: Path) -> None:
        state = state_of(folder)
        change(state)
        save_file(state, folder / "model.safetensors")

    return damage


def cut(name: str, n: int):
    """Keeps the first n bytes of a file, or leaves out the last -n."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:n])


def write(name: str, data: bytes):
    return lambda folder: (folder / name).write_bytes(data)


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def both(*damages):
    return lambda folder: [damage(folder) for damage in damages]


def indexed(data: bytes):
    """Writes an index; the weights become its only shard."""

    def damage(folder: Path) -> None:
        (folder / INDEX).write_bytes(data)
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")

    return damage


NOWHERE = '{"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}'
ABSENT = '{"weight_map": {"model.norm.weight": "model-00001.safetensors"}}'
ELSEWHERE = '{"weight_map": {"model.other.weight": "model-00001-of-00001.safetensors"}}'
INDEX = "model.safetensors.index.json"
PAGE = b"<!DOCTYPE html>\n<html>404</html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 497\n"
LORA = b'{"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.2-1B"}'
LORA_TENSOR = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
QUERIES = "model.layers.0.self_attn.q_proj.weight"
BASE_LAYER = QUERIES.replace("weight", "base_layer.weight")
NAN = torch.full((32,), float("nan"))
# What is done to the folder of a model, and what the message must say.
FOLDERS = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "a page as config": (write("config.json", PAGE), r"cannot be read \(it is a web page"),
    "an adapter beside its model": (write("adapter_config.json", LORA), "has adapter_config.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
    "a foreign tokenizer": (write("tokenizer.json", b"{}"), "tokenizer.json is not a tokenizer"),
    "GGUF files": (
        both(
            lambda folder: (folder / "config.json").unlink(),
            write("x-q4_0.gguf", b"GGUF"),
        ),
        r"no config\.json: name a file in it, such as .*x-q4_0\.gguf",
    ),
    "an adapter that is not merged": (
        changed(lambda x: x.update({QUERIES.replace("weight", "lora_A.weight"): torch.ones(3)})),
        r"q_proj\.lora_A\.weight: it is a model with an adapter; .* merge_and_unload\(\)",
    ),
    "two tensors of one name": (
        changed(lambda x: x.update({f"_orig_mod.{QUERIES}": torch.ones(3)})),
        "differ only by the wrappers of torch.compile",
    ),
    "pickled weights": (
        both(
            lambda folder: (folder / "model.safetensors").unlink(),
            write("pytorch_model.bin", b"\x80"),
        ),
        r"no \.safetensors file: run `python -c '.*save_pretrained\(x\)'`, and name ",
    ),
    "two files": (
        lambda folder: (
            (folder / "model.safetensors").rename(folder / "a.safetensors")
            and write("b.safetensors", b"x")(folder)
        ),
        r"2 files \(a.safetensors, b.safetensors\)",
    ),
    "cut weights": (cut("model.safetensors", -1000), "model.safetensors is damaged"),
    "a pointer of Git LFS": (
        write("model.safetensors", POINTER),
        "Git LFS pointer",
    ),
    "an index without a map": (indexed(b"{}"), "no weight_map"),
    "an index that leads out": (indexed(NOWHERE.encode()), "'../elsewhere.safetensors'"),
    "a lost shard": (indexed(ABSENT.encode()), "lacks model-00001.safetensors"),
    "a tensor of no shard": (indexed(ELSEWHERE.encode()), "puts it in 'nowhere'"),
    "a header without end": (
        write("model.safetensors", struct.pack("<Q", 2**40) + b"{}"),
        "header of 1,099,511,627,776 bytes, and the limit is",
    ),
    "a huge config": (
        write("config.json", b'{"a":[' + b"0," * 2**23 + b"0]}"),
        r"config\.json has 16,777,225 bytes, and the limit is 16,777,216",
    ),
    "a spare tensor": (changed(lambda x: x.update(score=torch.ones(3))), "the tensor score"),
    "a name of two lines": (
        changed(lambda x: x.update({"a\nb\x1b[31m": torch.ones(3)})),
        r"the tensor 'a\\nb\\x1b",
    ),
    "another shape": (
        changed(lambda x: x.update({EMBEDDING: torch.ones(320, 31)})),
        r"embed_tokens.weight has the shape \(320, 31\).* needs \(320, 32\)",
    ),
    "integers": (
        changed(lambda x: x.update({EMBEDDING: x[EMBEDDING].int()})),
        "embed_tokens.weight is I32",
    ),
    "NaN": (
        changed(lambda x: x.update({"model.layers.1.input_layernorm.weight": NAN})),
        "blocks.1.ln1.weight holds NaN",
    ),
    "a tokenizer of another model": (
        both(
            changed(lambda x: x.update({EMBEDDING: x[EMBEDDING][:300].clone()})),
            changed(lambda x: x.update({"lm_head.weight": x["lm_head.weight"][:300].clone()})),
            lambda folder: change_json(folder / "config.json", vocab_size=300),
        ),
        "the tokenizer has 304 tokens, the model has 300",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_bad_folder_is_refused_in_one_line(case, own_folder):
    folder = own_folder()
    damage, words = FOLDERS[case]
    damage(folder)
    with pytest.raises(PretrainedError, match=words) as caught:
        load_pretrained(folder)
    assert "\n" not in str(caught.value)


WRAPPERS = {
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "DistributedDataParallel": lambda name: f"module.{name}",
    "peft, merged": lambda name: f"base_model.model.{name}",
    "a model with images": lambda name: f"language_model.{name}",
    "a compiled layer": lambda name: name.replace("layers.0.", "layers.0._orig_mod."),
    "FSDP": lambda name: name.replace("layers.1.", "_fsdp_wrapped_module.layers.1."),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_that_a_wrapper_has_left_are_understood(wrapper, own_folder):
    folder = own_folder()
    plain = load_pretrained(folder)[0].state_dict()
    state = {WRAPPERS[wrapper](name): tensor for name, tensor in state_of(folder).items()}
    save_file(state, folder / "model.safetensors")
    found = load_pretrained(folder)[0].state_dict()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


ENDS = {  # the end tokens in two files, and the warning
    "an id": (50256, None, "generation_config.json: eos_token_id=50256: beyond .* of 304"),
    "one of a list": ([1, 999], 999, "generation_config.json: eos_token_id=999, .*=999: beyond"),
}


@pytest.mark.parametrize("case", ENDS)
def test_an_end_token_beyond_the_vocabulary_is_ignored_with_one_warning(case, own_folder):
    in_generation, in_config, words = ENDS[case]
    folder = own_folder("llama")
    change_json(folder / "generation_config.json", eos_token_id=in_generation)
    change_json(folder / "config.json", eos_token_id=in_config)
    with pytest.warns(UserWarning, match=words) as caught:
        stop = load_pretrained(folder)[1].stop
    assert len(caught) == 1
    assert set(stop) <= {1, 2}


def test_an_end_token_beyond_the_vocabulary_of_a_gguf_file_is_ignored(tmp_path):
    metadata = {"tokenizer.ggml.eot_token_id": 5000}
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata=metadata)
    with pytest.warns(UserWarning, match="tokenizer.ggml.eot_token_id=5000: beyond"):
        assert load_pretrained(path)[1].stop == (2,)


def test_an_index_beside_a_whole_file_is_of_an_earlier_model(own_folder):
    """As transformers reads it."""
    folder = own_folder()
    (folder / INDEX).write_bytes(ABSENT.encode())
    found = load_pretrained(folder)[0].token_embedding_table.weight
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).model.embed_tokens.weight
    assert torch.equal(found, theirs)


def test_a_model_that_does_not_fit_the_memory_is_refused_before_it_is_read(
    kept_folders, monkeypatch
):
    def read(*given):
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(nanogpt.pretrained.assemble, "available_memory", lambda: 100_000)
    monkeypatch.setattr(nanogpt.pretrained.assemble, "from_file", read)
    words = r"needs 0\.00 GB as torch\.float32 .* 0\.00 GB of memory are available"
    with pytest.raises(PretrainedError, match=words):
        load_pretrained(kept_folders("llama"))


SOURCES = {
    "": "source='': no model there",
    "/nowhere/at/all": "source='/nowhere/at/all'",
    "x.safetensors": "x.safetensors is one file of a model: name its folder",
    "text.txt": "text.txt is .*not a file written by torch.save",
    "pointer.gguf": "pointer.gguf is a Git LFS pointer; name a whole GGUF file",
    "page.pt": "page.pt is a web page or XML, not a file written by torch.save",
    "config.json": r"config\.json is one file of a model: name its folder, \.",
    "pytorch_model.bin": r"is a pickle of transformers: run `python -c ",
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_is_no_model_is_refused_in_one_line(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "x.safetensors", "config.json", "pytorch_model.bin"):
        Path(name).write_text("a text", encoding="utf-8")
    Path("page.pt").write_bytes(PAGE)
    Path("pointer.gguf").write_bytes(POINTER)
    with pytest.raises(PretrainedError, match=SOURCES[source]) as caught:
        load_pretrained(source)
    assert "\n" not in str(caught.value)


def command_in(caught) -> str:
    """The command in a message."""
    return str(caught.value).split("`")[1]


@pytest.mark.parametrize("named", ["", "pytorch_model.bin"])
def test_the_command_for_pickled_weights_works(named, own_folder):
    folder = own_folder("gpt2")
    plain = load_pretrained(folder)[0].lm_head.weight
    torch.save(state_of(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(PretrainedError, match="from transformers import") as caught:
        load_pretrained(folder / named)
    program, option, code = shlex.split(command_in(caught))
    assert (program, option) == ("python", "-c")
    exec(code, {})
    assert torch.equal(load_pretrained(folder)[0].lm_head.weight, plain)


def test_an_unknown_dtype_is_refused(kept_folders):
    with pytest.raises(ValueError, match=r"dtype=torch\.int8: must be one of torch\.float32"):
        load_pretrained(kept_folders("llama"), dtype=torch.int8)


# ------------------------------------------------------------------ GGUF


def start(n_tensors: int, n_values: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def array(kind: int, n: int) -> bytes:
    return text("x") + struct.pack("<IIQ", 9, kind, n)


def tensor(*sizes: int, kind: int = 0, offset: int = 0, name: str = "x") -> bytes:
    dims = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


ZEROS = bytes(4096)
HOSTILE = {
    "only a header": (start(0, 0), "no tensors, only a header"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "2⁶⁰ tensors": (start(2**60, 0) + ZEROS, "tensors, and the limit"),
    "a long name": (start(0, 1) + struct.pack("<Q", 2**60) + ZEROS, "bytes announced"),
    "arrays in arrays": (start(0, 1) + array(9, 5) + ZEROS, "an array of the type 9"),
    "an unknown type": (start(0, 1) + text("x") + struct.pack("<I", 77), "unknown type 77"),
    "a huge tensor": (start(1, 0) + tensor(2**30, 2**30, 2**30) + ZEROS, "is truncated: x should"),
    "no architecture": (start(1, 0) + tensor(4) + ZEROS, "general.architecture=None"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_in_one_line_and_in_little_memory(case, tmp_path):
    data, words = HOSTILE[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(PretrainedError, match=words) as caught:
            load_pretrained(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert most < 20 * 2**20


def test_our_reading_of_a_header_is_that_of_the_gguf_package(tmp_path):
    path = write_gguf(tmp_path / "x.gguf", "qwen3", "Q8_0", metadata={"general.alignment": 64})
    theirs = gguf.GGUFReader(path)
    ours = read_gguf(path)
    fields = {name: field.contents() for name, field in theirs.fields.items()}
    assert ours.metadata == {name: x for name, x in fields.items() if not name.startswith("GGUF.")}
    assert list(ours.tensors) == [one.name for one in theirs.tensors]
    for one in theirs.tensors:
        stored = ours.tensors[one.name]
        assert stored.shape == tuple(reversed(one.shape.tolist()))
        expected = torch.from_numpy(gguf.dequantize(one.data, one.tensor_type))
        assert torch.equal(stored.read().float(), expected.view(stored.shape)), one.name


PARTS = {  # the name of a file, what it says about itself, and what must be in the message
    "x-00001-of-00003.gguf": ({"split.count": 3, "split.no": 0}, "one of the 3 parts"),
    "x-00002-of-00003.gguf": ({"split.count": 3, "general.architecture": ...}, "x-00001-of-00003"),
    "renamed.gguf": ({"split.count": 2}, r"llama-gguf-split --merge FIRST\.gguf renamed\.gguf"),
}


@pytest.mark.parametrize("tensors", [None, {}])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_split_model_is_refused_with_the_command_that_joins_them(
    name, tensors, tmp_path
):
    metadata, words = PARTS[name]
    path = write_gguf(tmp_path / name, "llama", metadata=metadata, tensors=tensors)
    with pytest.raises(PretrainedError, match=words) as caught:
        load_pretrained(path)
    assert "llama-gguf-split --merge" in str(caught.value)


@pytest.mark.parametrize("count", [0, 1])
def test_a_joined_model_may_keep_the_name_of_its_first_part(count, tmp_path):
    metadata = {"split.count": count}
    path = write_gguf(tmp_path / "x-00001-of-00003.gguf", "llama", metadata=metadata)
    assert load_pretrained(path)[0].n_params


def test_a_gguf_file_that_lacks_a_tensor_is_refused_by_its_name(tmp_path):
    tensors = gguf_tensors("llama")
    del tensors["blk.1.attn_k.weight"]
    path = write_gguf(tmp_path / "x.gguf", "llama", tensors=tensors)
    with pytest.raises(PretrainedError, match=r"no tensor blk\.1\.attn_k\.weight"):
        load_pretrained(path)


def test_a_scaling_of_rotations_that_is_not_llama_3s_is_refused(tmp_path):
    tensors = gguf_tensors("llama 3.2")
    tensors["rope_freqs.weight"][1] *= 1.5
    path = write_gguf(tmp_path / "x.gguf", "llama 3.2", tensors=tensors)
    with pytest.raises(PretrainedError, match=r"rope_freqs\.weight is not Llama 3's scaling"):
        load_pretrained(path)
