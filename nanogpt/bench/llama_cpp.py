"""llama.cpp compared with our engines: the package xllamacpp, on the same GGUF file.

llama.cpp computes in the types of a file's tensors, and rounds activations to 8 bits if the weights
are quantized. So the file is rewritten with its matrices expanded to F32, which are the weights of
our Decoder, or quantized to Q8_0. The build is xllamacpp's: its wheels run on any processor with
AVX2; `pip install --no-binary xllamacpp xllamacpp` compiles it for this one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..pretrained.gguf_file import MAGIC, read_gguf
from ..pretrained.needs import PretrainedError, needed
from .peers import Peer, PeerTask

TYPES = ("F32", "Q8_0")  # the types that `rewrite` can write
REWRITTEN = ("general.architecture", "general.file_type", "general.quantization_version")


class LlamaCpp:
    """A llama.cpp model on one GGUF file, which decodes greedily, one text at a time.

    It uses as many threads as torch. Raises ImportError without xllamacpp.
    """

    def __init__(self, path: Path, capacity: int):
        import xllamacpp

        threads = torch.get_num_threads()
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = capacity
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.cache_prompt = False
        params.cache_ram_mib = 0
        params.warmup = False
        params.verbosity = -1
        self.server = xllamacpp.Server(params)
        self.known: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, task: PeerTask) -> Tensor:
        """The most likely tokens after a prompt: it draws no noise of ours.  -> (n_new,)

        The streamed reply has no token ids, and requesting them costs time. So they come from a
        separate request, made before the first timed one for a prompt.
        """
        ids = task.prompt.tolist()
        request = {
            "prompt": ids,
            "n_predict": task.n_new,
            "samplers": ["top_k"],
            "top_k": 1,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        key = (*ids, task.n_new)
        if key not in self.known:
            answer = self._asked(request | {"logprobs": 1})
            pieces = answer["choices"][0]["logprobs"]["content"]
            self.known[key] = torch.tensor([piece["id"] for piece in pieces])
        waiting = [task.first]

        def on_piece(piece: dict[str, Any]) -> None:
            if waiting:
                waiting.pop()()

        self._asked(request | {"stream": True}, on_piece)
        return self.known[key]

    def _asked(self, request: dict[str, Any], *on_piece: Callable[..., None]) -> Any:
        answer = self.server.handle_completions(request, *on_piece)
        if isinstance(answer, dict) and "error" in answer:
            raise ValueError(f"llama.cpp refuses the text ({answer['error']}): use fewer tokens")
        return answer


def llama_cpp_peers(source: Path, capacity: int, folder: Path) -> dict[str, Peer]:
    """llama.cpp on a GGUF file as it is, and on copies of each of TYPES, written to `folder`.

    Raises ImportError without xllamacpp, ValueError if `source` is not a GGUF file.
    """
    check_gguf(source)
    files = {own_type(source): source}
    for kind in TYPES:
        if kind not in files:
            files[kind] = folder / f"{kind}.gguf"
            rewrite(source, files[kind], kind)
    peers = {}
    for kind, file in files.items():
        # Its cache has 16-bit numbers.
        peers[f"llama.cpp, {kind}"] = Peer(
            LlamaCpp(file, capacity), kind, weight_bytes(file), kv_itemsize=2
        )
    return peers


def build() -> str:
    """A description of the running llama.cpp: version, compiler, instruction sets."""
    import xllamacpp

    said = xllamacpp.get_system_info().partition(":")[2]  # SSE3 = 1 | AVX = 1 | …
    used = [name.partition("=")[0].strip() for name in said.split("|") if "= 1" in name]
    compiler = xllamacpp.BUILD_INFO["compiler"]
    return f"xllamacpp {xllamacpp.__version__}, {compiler}, {' '.join(used)}"


def check_gguf(path: Path) -> None:
    """Raise ValueError if a path is not a GGUF file."""
    with suppress(OSError), open(path, "rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return
    raise ValueError(f"--peer llama.cpp reads GGUF files, and {path} is not one: leave it out")


def own_type(path: Path) -> str:
    """The type of most weights in a GGUF file, such as Q4_1. Raises PretrainedError."""
    sizes: dict[str, int] = {}
    for stored in read_gguf(path).tensors.values():
        sizes[stored.kind] = sizes.get(stored.kind, 0) + stored.numel
    return max(sizes, key=lambda kind: sizes[kind])


def weight_bytes(path: Path) -> int:
    """Bytes of a GGUF file read per decoded token: all but an untied embedding table."""
    with needed("a GGUF file"):
        from gguf import GGUFReader
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    tables = ["position_embd.weight"] + ["token_embd.weight"] * ("output.weight" in sizes)
    return sum(size for name, size in sizes.items() if name not in tables)


def rewrite(source: Path, target: Path, kind: str) -> None:
    """Rewrite a GGUF file with its matrices as `kind`, one of TYPES; vectors are F32.

    Raises PretrainedError for tensors that cannot be dequantized, and OSError.
    """
    with needed("a GGUF file"):
        import gguf
    reader = gguf.GGUFReader(source)
    wanted = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name not in REWRITTEN and not name.startswith("GGUF."):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        try:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise PretrainedError(f"{source}: {tensor.name} cannot be expanded: {error}") from error
        if numbers.ndim == 1 or kind == "F32":
            writer.add_tensor(tensor.name, numbers)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
