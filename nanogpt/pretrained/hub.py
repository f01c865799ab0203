"""Download models from Hugging Face's hub, by name or by address."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..console import first_line
from .fetch import offline
from .gguf_file import SPLIT_NAME
from .needs import PretrainedError, needed, shown, shown_value

# The files of a hub repository that a model needs.
HUB_FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"]
HUB_FILES += ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"]
HUB_FILES += ["special_tokens_map.json", "chat_template.jinja", "additional_chat_templates/*.jinja"]
HUB_FILES += ["adapter_config.json"]  # to recognise an adapter, which is refused
# The same weights a second time, as in openai/gpt-oss-20b and mistralai/Mistral-7B-v0.3.
COPIES = ["*/*.safetensors", "consolidated*.safetensors"]
_LISTED = 12  # types of GGUF files in a message
# The type of a GGUF file in its name, such as Q4_K_M, IQ2_XS, BF16 or fp16.
# Unsloth's own mixtures have UD- before it.
_GGUF_NAME = re.compile(
    r"[-._](?P<type>(?:UD-)?[A-Z]{1,3}\d\w*)(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE
)


@dataclass(frozen=True)
class HubName:
    """A model on Hugging Face's hub, or one file of it."""

    repository: str  # owner/name
    revision: str | None = None  # None: the newest
    file: str = ""  # a GGUF file's name in the repository
    quantization: str = ""  # of a GGUF file, such as Q4_K_M, which its name ends in

    def __str__(self) -> str:
        return f"{self.repository}:{self.quantization}" if self.quantization else self.repository


_OWNER_NAME = r"(?P<repository>\w[\w.-]*/\w[\w.-]*)"
_HUB_NAME = re.compile(_OWNER_NAME + r"(?::(?P<quantization>\w[\w.-]*))?", re.ASCII)
# What a browser shows above a model or one of its files, and what other programs accept.
_HUB_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<rest>.+)")
_IN_REPOSITORY = re.compile(
    _OWNER_NAME
    + r"(?:/(?:tree/(?P<tree>[^/]+)|(?:blob|resolve|raw)/(?P<revision>[^/]+)/(?P<file>.+)))?",
    re.ASCII,
)


def hub_name(source: str) -> HubName | None:
    """What a source names on the hub; None if it names nothing there.

    It may be owner/name, with the type of a GGUF file behind a colon, or an address. Raises
    PretrainedError for the address of another site.
    """
    address = _HUB_ADDRESS.fullmatch(source)
    if address is None:
        if re.match(r"https?://", source):
            raise PretrainedError(
                f"source={shown_value(source)} is not an address of huggingface.co: download the "
                f"file, and name it"
            )
        return _by_name(source)
    rest = re.split(r"[?#]", address["rest"])[0].strip("/")
    named = _by_name(rest)
    if named is not None:
        return named
    found = _IN_REPOSITORY.fullmatch(rest)
    if found is None:
        raise PretrainedError(f"source={shown_value(source)} names no model: write owner/name")
    file = found["file"] or ""
    # The address of any other file of a model stands for the model.
    revision = found["revision"] or found["tree"]
    return HubName(found["repository"], revision, file if file.endswith(".gguf") else "")


def _by_name(text: str) -> HubName | None:
    """owner/name or owner/name:type."""
    found = _HUB_NAME.fullmatch(text)
    if found is None:
        return None
    return HubName(found["repository"], quantization=found["quantization"] or "")


def fetch_from_hub(name: HubName) -> Path:
    """The folder or GGUF file of a model on Hugging Face's hub, downloaded now or earlier.

    `huggingface_hub` keeps it in its own cache, resumes interrupted downloads, and reads HF_TOKEN
    for models that are not public. Raises PretrainedError, and ModuleNotFoundError without the
    package.
    """
    with needed(f"{name}, a name on the hub,"):
        import huggingface_hub
    where: dict[str, Any] = {"revision": name.revision, "local_files_only": offline()}
    try:
        # 1. A folder of transformers. Repositories of GGUF files may have a config.json alone.
        folder = None
        if not name.file and not name.quantization:
            found = huggingface_hub.snapshot_download(
                name.repository, allow_patterns=HUB_FILES, ignore_patterns=COPIES, **where
            )
            folder = Path(found)
            if any(folder.glob("*.safetensors")) or (folder / "adapter_config.json").is_file():
                return folder
        # 2. A GGUF file, downloaded alone.
        files = [] if name.file else _files_on_hub(name)
        if folder is not None and not any(file.endswith(".gguf") for file in files):
            raise _no_model(name, files)
        file = name.file or _gguf_file(name, files)
        _check_not_split(name, file)
        return Path(huggingface_hub.hf_hub_download(name.repository, file, **where))
    except PretrainedError:
        raise
    except Exception as error:  # network, hub or disk: each library has its own errors
        raise PretrainedError(
            f"{name} could not be fetched from the hub ({first_line(error):.100}): correct the "
            f"name, {_network_cure()}, or name a folder or a .gguf file"
        ) from error


def _network_cure() -> str:
    """What to do about the network: a variable may forbid it."""
    for variable in ("NANOGPT_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(variable, "0") not in ("", "0"):
            return f"unset {variable}"
    return "connect to a network"


def _files_on_hub(name: HubName) -> list[str]:
    """The names of a repository's files; without a network, of those downloaded earlier."""
    import huggingface_hub

    # 1. The layout of the cache: models--OWNER--NAME/snapshots/COMMIT/FILE. A snapshot may be part
    # of the repository, as one GGUF file is.
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    snapshots = cache / f"models--{name.repository.replace('/', '--')}" / "snapshots"
    paths = [path.relative_to(snapshots) for path in snapshots.rglob("*") if path.is_file()]
    kept = ["/".join(path.parts[1:]) for path in paths]
    if offline() and not kept:
        raise FileNotFoundError("no file of it was downloaded earlier")
    if offline():
        return kept
    # 2. The hub, if it answers.
    try:
        return huggingface_hub.HfApi().list_repo_files(name.repository, revision=name.revision)
    except Exception:
        if not kept:
            raise
        return kept


def _gguf_file(name: HubName, files: list[str]) -> str:
    """The GGUF file of the type that was asked for. Raises PretrainedError, naming the others."""
    models = [file for file in sorted(files) if file.lower().endswith(".gguf")]
    models = [file for file in models if "mmproj" not in file.lower()]
    # 1. The only one, such as model.gguf.
    if len(models) == 1 and not name.quantization:
        return models[0]
    # 2. The one whose name ends in the type.
    types: dict[str, str] = {}
    for file in models:
        found = _GGUF_NAME.search(file)
        # Of a split model, the first part: its name tells how to join them.
        if found:
            types.setdefault(found["type"].upper(), file)
    if not types and models:
        raise PretrainedError(
            f"{name.repository} has GGUF files without their type in their name: name one by its "
            f"address, as https://huggingface.co/{name.repository}/blob/main/{models[0]:.80}"
        )
    if not types:
        raise PretrainedError(
            f"{name.repository} has neither a config.json with model.safetensors nor GGUF files: "
            f"name another"
        )
    asked = name.quantization.upper()
    chosen = types.get(asked) or types.get(f"UD-{asked}")
    if chosen is None:
        known = ", ".join(list(types)[:_LISTED])
        more = ", …" if len(types) > _LISTED else ""
        example = "Q4_K_M" if "Q4_K_M" in types else next(iter(types))
        lacks = f"no {name.quantization}" if name.quantization else "no config.json"
        raise PretrainedError(
            f"{name.repository} has {lacks} and GGUF files of the types {known}{more}: choose one, "
            f"as in {name.repository}:{example}"
        )
    return chosen


def _check_not_split(name: HubName, file: str) -> None:
    """Raise PretrainedError for one part of a split model, before it is downloaded."""
    split = SPLIT_NAME.search(file)
    if split and int(split[2]) > 1:
        stem = file[: split.start()]
        merge = ["llama-gguf-split", "--merge", f"{stem}-00001-of-{split[2]}.gguf"]
        merge += [f"{Path(stem).name}.gguf"]
        raise PretrainedError(
            f"{name} is split into {int(split[2])} parts: run `{_download(name, f'{stem}-*')}` and "
            f"`{shlex.join(merge)}` (it comes with llama.cpp), and name the joined file"
        )


def _download(name: HubName, pattern: str) -> str:
    """The command that downloads some files of a repository into this folder."""
    words = ["hf", "download", name.repository, "--include", pattern, "--local-dir", "."]
    return shlex.join(words)


def _no_model(name: HubName, files: list[str]) -> PretrainedError:
    """The error for a repository without weights that can be read, by what it has instead."""
    folders = sorted({file.rpartition("/")[0] for file in files if file.endswith(".safetensors")})
    if folders:
        return PretrainedError(
            f"{name} has no model.safetensors, only folders such as {shown(folders[0])}: run "
            f"`{_download(name, f'{folders[0]}/*')}`, and name that folder"
        )
    if any(file.endswith(".bin") for file in files):
        folder = Path(name.repository).name
        code = (
            f"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
            f'[x.from_pretrained("{name.repository}").save_pretrained("{folder}") for x in (M, T)]'
        )
        return PretrainedError(
            f"{name} has no .safetensors file: run `python -c {shlex.quote(code)}`, and name "
            f"the folder {folder}"
        )
    return PretrainedError(
        f"{name} has neither model.safetensors nor GGUF files: name a model that has"
    )
