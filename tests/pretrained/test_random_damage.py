"""Files with random damage load, or are refused in one short line, in little memory."""

from __future__ import annotations

import copy
import io
import json
import random
import resource
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest
import torch
from pretrained_fixtures import their_model, write_folder, write_gguf

from nanogpt import CharTokenizer, load_pretrained
from nanogpt.pretrained.needs import PretrainedError

Damage = Callable[[bytes, random.Random], bytes]
ROOM = 2 * 2**30  # bytes of address space beyond what the process has


class Target(NamedTuple):
    """A file to damage, and what is loaded then."""

    file: Path
    source: Path
    damage: Damage
    tokenizer: CharTokenizer | None = None


def bytes_of(start: int, end: int) -> Damage:
    """Change, insert or leave out a few bytes of that range, or cut the file there."""

    def damage(data: bytes, dice: random.Random) -> bytes:
        changed = bytearray(data)
        for _ in range(dice.randint(1, 6)):
            place = dice.randrange(start, min(end, len(changed)))
            match dice.randrange(4):
                case 0:
                    changed[place] = dice.randrange(256)
                case 1:
                    number = dice.choice([0, 2**31, 2**63, 2**64 - 1])
                    changed[place : place + 8] = struct.pack("<Q", number)
                case 2:
                    del changed[place : place + dice.randint(1, 9)]
                case 3:
                    changed[place:place] = dice.randbytes(dice.randint(1, 9))
        if dice.random() < 0.2:
            del changed[dice.randrange(start, end) :]
        return bytes(changed)

    return damage


VALUES = [None, True, -1, 0, 3, 2**70, 10**300, 1e300, float("nan"), float("inf"), "x", "silu"]
VALUES += [[], [1], {}, {"a": 1}, "x" * 10_000, "\ud800", [[["y"] * 99] * 9] * 9, "llama3", "\n"]


def values_of_json(data: bytes, dice: random.Random) -> bytes:
    """Change some values of an object, or of the objects in it; or its bytes."""
    if dice.random() < 0.3:
        return bytes_of(0, len(data))(data, dice)
    fields = json.loads(data)
    for _ in range(dice.randint(1, 3)):
        place = fields
        name = dice.choice(sorted(place))
        while isinstance(place[name], dict) and place[name] and dice.random() < 0.7:
            place = place[name]
            name = dice.choice(sorted(place))
        place[name] = copy.deepcopy(dice.choice(VALUES))  # it may be changed in turn
    return json.dumps(fields).encode()


def gguf_file(folder: Path) -> Target:
    path = write_gguf(folder / "x.gguf", "llama")
    header = min(int(one.data_offset) for one in gguf.GGUFReader(path).tensors)
    return Target(path, path, bytes_of(0, header))


def in_a_folder(name: str) -> Callable[[Path], Target]:
    def target(folder: Path) -> Target:
        write_folder(folder, "llama", max_shard_size="20KB" if "index" in name else "1GB")
        data = (folder / name).read_bytes()
        if name.endswith(".safetensors"):
            return Target(folder / name, folder, bytes_of(0, 8 + struct.unpack("<Q", data[:8])[0]))
        whole = name == "tokenizer.json"  # its values are lists of thousands
        return Target(folder / name, folder, bytes_of(0, len(data)) if whole else values_of_json)

    return target


def with_a_damaged_pickle(data: bytes, dice: random.Random) -> bytes:
    """The archive of torch.save with a pickle of other bytes, whose checksum is right again."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = bytearray(old.read(name))
            if name.endswith("data.pkl"):
                for _ in range(dice.randint(1, 4)):
                    place = dice.randrange(len(content))
                    wrong = [bytes([content[place] ^ 1 << dice.randrange(8)]), dice.randbytes(1)]
                    content[place : place + dice.choice([1, 1, 4])] = dice.choice(wrong)
            new.writestr(name, bytes(content))
    return made.getvalue()


def nanogpt_file(folder: Path) -> Target:
    gpt = their_model("gpt2")
    state = {
        name: tensor.t().contiguous() if ".c_" in name and tensor.ndim > 1 else tensor
        for name, tensor in gpt.state_dict().items()
    }
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64, "vocab_size": 320}
    path = folder / "ckpt.pt"
    torch.save({"model": state, "model_args": sizes | {"bias": True}, "iter_num": 5}, path)
    directory = path.read_bytes().index(b"PK\x01\x02")  # where the list of entries begins

    def damage(data: bytes, dice: random.Random) -> bytes:
        if dice.random() < 0.2:
            return bytes_of(*dice.choice([(directory, len(data)), (0, len(data))]))(data, dice)
        return with_a_damaged_pickle(data, dice)

    return Target(path, path, damage, CharTokenizer("".join(map(chr, range(200, 520)))))


FILES: dict[str, Callable[[Path], Target]] = {
    "gguf": gguf_file,
    "safetensors": in_a_folder("model.safetensors"),
    "index": in_a_folder("model.safetensors.index.json"),
    "config": in_a_folder("config.json"),
    "tokenizer": in_a_folder("tokenizer.json"),
    "tokenizer config": in_a_folder("tokenizer_config.json"),
    "nanoGPT": nanogpt_file,
}


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Allocations of more than ROOM fail, so that a test of what is refused fails with them."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is Linux's")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [60, pytest.param(2000, marks=pytest.mark.release)])
@pytest.mark.parametrize("kind", FILES)
def test_random_damage_ends_in_one_line(kind, n, tmp_path, little_memory):
    file, source, damage, tokenizer = FILES[kind](tmp_path)
    whole = file.read_bytes()
    load_pretrained(source, tokenizer=tokenizer)
    dice = random.Random(1)
    ends = set()
    for _ in range(n):
        file.unlink()  # a model that was loaded may still have the earlier file mapped
        file.write_bytes(damage(whole, dice))
        try:
            load_pretrained(source, tokenizer=tokenizer)
        except PretrainedError as error:
            message = str(error)
            assert message.isprintable()
            assert len(message) < 900, message
            ends.add(message)
    assert len(ends) > min(n // 20, 20), "the damage is seen, in many ways"
