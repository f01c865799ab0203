"""Download models from Hugging Face's hub, by name or by address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..console import first_line
from .fetch import offline
from .gguf_file import SPLIT_NAME, how_to_join
from .needs import PretrainedError, needed, shown_value

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
    return HubName(found["repository"], revision, file if file.lower().endswith(".gguf") else "")


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
        if not name.file and not name.quantization:
            found = huggingface_hub.snapshot_download(
                name.repository, allow_patterns=HUB_FILES, ignore_patterns=COPIES, **where
            )
            folder = Path(found)
            if any(folder.glob("*.safetensors")) or (folder / "adapter_config.json").is_file():
                return folder
        # 2. A GGUF file, downloaded alone.
        file = name.file or _gguf_file(name, _files_on_hub(name))
        split = SPLIT_NAME.search(file)
        if split and int(split[2]) > 1:
            raise PretrainedError(
                f"{name} is split into {int(split[2])} parts: download them all, "
                f"{how_to_join(Path(file).name)}"
            )
        return Path(huggingface_hub.hf_hub_download(name.repository, file, **where))
    except PretrainedError:
        raise
    except Exception as error:  # network, hub or disk: each library has its own errors
        raise PretrainedError(
            f"{name} could not be fetched from the hub ({first_line(error):.100}): correct the "
            f"name, connect to a network (NANOGPT_OFFLINE or HF_HUB_OFFLINE may forbid it), or "
            f"name a folder or a .gguf file"
        ) from error


def _files_on_hub(name: HubName) -> list[str]:
    """The names of a repository's files; without a network, of those downloaded earlier."""
    import huggingface_hub

    if not offline():
        try:
            return huggingface_hub.HfApi().list_repo_files(name.repository, revision=name.revision)
        except Exception:  # as in `fetch_from_hub`; it may be in the cache
            pass
    found = huggingface_hub.snapshot_download(
        name.repository, revision=name.revision, local_files_only=True
    )
    folder = Path(found)
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _gguf_file(name: HubName, files: list[str]) -> str:
    """The GGUF file of the type that was asked for. Raises PretrainedError, naming the others."""
    models = [file for file in sorted(files) if file.lower().endswith(".gguf")]
    models = [file for file in models if "mmproj" not in file.lower()]
    if not models:
        raise PretrainedError(
            f"{name} has neither model.safetensors nor GGUF files: name another, or the folder "
            f"that transformers' save_pretrained makes of it"
        )
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
    if not types:
        raise PretrainedError(
            f"{name.repository} has GGUF files without their type in their name: name one by its "
            f"address, as https://huggingface.co/{name.repository}/blob/main/{models[0]:.80}"
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
