"""Models on the hub by name and address: what is downloaded, and what is refused before."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from pretrained_fixtures import write_gguf

from nanogpt import load_pretrained
from nanogpt.pretrained.needs import PretrainedError


class Hub(types.ModuleType):
    """Stands for the package huggingface_hub: repositories by name, each a folder of files."""

    def __init__(self):
        super().__init__("huggingface_hub")
        self.repositories = {}
        self.asked = []
        self.fails = None
        self.HfApi = lambda: self

    def _folder(self, name: str, revision: str | None, local_files_only: bool) -> Path:
        self.asked.append((name, revision, local_files_only))
        if self.fails:
            raise self.fails
        return self.repositories[name]

    def snapshot_download(
        self, name, allow_patterns=None, ignore_patterns=None, revision=None, local_files_only=False
    ) -> str:
        self.patterns = allow_patterns
        return str(self._folder(name, revision, local_files_only))

    def list_repo_files(self, name, revision=None) -> list[str]:
        folder = self._folder(name, revision, False)
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*.*")]

    def hf_hub_download(self, name, file, revision=None, local_files_only=False) -> str:
        path = self._folder(name, revision, local_files_only) / file
        if not path.is_file():
            raise FileNotFoundError(f"no {file}")
        self.downloaded = file
        return str(path)


@pytest.fixture
def hub(kept_folders, monkeypatch):
    kept_folders("qwen2")  # transformers imports the real one
    module = Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.delenv("NANOGPT_OFFLINE", raising=False)
    return module


NAMES = {  # a source, and the revision that it names
    "Qwen/Qwen2.5-0.5B": None,
    "https://huggingface.co/Qwen/Qwen2.5-0.5B": None,
    "hf.co/Qwen/Qwen2.5-0.5B?library=transformers#usage": None,
    "https://huggingface.co/Qwen/Qwen2.5-0.5B/blob/main/config.json": "main",
    "https://huggingface.co/Qwen/Qwen2.5-0.5B/resolve/v1.0/model.safetensors": "v1.0",
}


@pytest.mark.parametrize("source", NAMES)
def test_a_name_or_address_is_looked_up_on_the_hub(source, hub, kept_folders):
    hub.repositories["Qwen/Qwen2.5-0.5B"] = kept_folders("qwen2")
    model, _ = load_pretrained(source)
    assert model.config.qkv_bias
    assert hub.asked == [("Qwen/Qwen2.5-0.5B", NAMES[source], False)]
    assert not [one for one in hub.patterns if one.endswith((".bin", ".py", ".pkl", ".pt", "gguf"))]
    assert "adapter_config.json" in hub.patterns  # which is refused


@pytest.fixture
def quantized(hub, tmp_path):
    """A repository of GGUF files, as people publish them."""
    folder = tmp_path / "snapshot"
    names = ["x-q8_0.gguf", "x.Q4_K_M.gguf", "mmproj-x-f16.gguf", "x-BF16-00001-of-00002.gguf"]
    names += ["x-BF16-00002-of-00002.gguf", "IQ4_XS/x-IQ4_XS.gguf", "README.md"]
    names += ["x-UD-Q4_K_XL.gguf"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    write_gguf(folder / "x.Q4_K_M.gguf", "llama")
    write_gguf(folder / "x-UD-Q4_K_XL.gguf", "llama")
    write_gguf(folder / "x-q8_0.gguf", "llama", "Q8_0")
    hub.repositories["owner/x-GGUF"] = folder
    return folder


FILES = {
    "owner/x-GGUF:Q4_K_M": "x.Q4_K_M.gguf",
    "owner/x-GGUF:Q4_K_XL": "x-UD-Q4_K_XL.gguf",
    "hf.co/owner/x-GGUF:Q8_0": "x-q8_0.gguf",
    "https://huggingface.co/owner/x-GGUF/resolve/main/x-q8_0.gguf?download=true": "x-q8_0.gguf",
}


@pytest.mark.parametrize("source", FILES)
@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_gguf_file_of_a_repository_is_chosen_by_its_type(
    source, offline, hub, quantized, monkeypatch
):
    monkeypatch.setenv("NANOGPT_OFFLINE", offline)
    monkeypatch.delenv("NANOGPT_OFFLINE_REASON", raising=False)
    assert load_pretrained(source)[0].n_params
    assert hub.downloaded == FILES[source]
    assert hub.asked[-1][2] is (offline == "1")


def test_a_cached_gguf_file_is_found_when_the_hub_does_not_answer(hub, quantized):
    def fails(*given, **options):
        raise ConnectionError("no route")

    hub.list_repo_files = fails
    assert load_pretrained("owner/x-GGUF:Q8_0")[0].n_params
    assert hub.downloaded == "x-q8_0.gguf"


def test_the_only_gguf_file_needs_no_type_in_its_name(hub, quantized):
    for path in quantized.rglob("*.gguf"):
        path.unlink()
    write_gguf(quantized / "model.gguf", "llama")
    assert load_pretrained("owner/x-GGUF")[0].n_params
    write_gguf(quantized / "other.gguf", "llama")
    with pytest.raises(PretrainedError, match="x-GGUF/blob/main/model.gguf"):
        load_pretrained("owner/x-GGUF")


@pytest.mark.parametrize("file", ["pytorch_model.bin", "README.md"])
def test_a_repository_without_weights_to_read_is_refused(file, hub, quantized):
    folder = quantized.with_name("other")
    folder.mkdir()
    (folder / file).write_bytes(b"")
    hub.repositories["owner/y"] = folder
    for source in ("owner/y", "owner/y:Q8_0"):
        with pytest.raises(PretrainedError, match="neither model.safetensors nor GGUF files"):
            load_pretrained(source)


KNOWN = "GGUF files of the types IQ4_XS, BF16, UD-Q4_K_XL, Q8_0, Q4_K_M: choose one, as in "
KNOWN += "owner/x-GGUF:Q4_K_M"
REFUSED = {
    "owner/x-GGUF": f"has no config.json and {KNOWN}",
    "owner/x-GGUF:Q5_K_M": f"has no Q5_K_M and {KNOWN}",
    "owner/x-GGUF:BF16": (
        r"split into 2 parts: download them all, run `llama-gguf-split --merge "
        r"x-BF16-00001-of-00002.gguf x-BF16.gguf`"
    ),
    "https://huggingface.co/owner/x-GGUF/resolve/main/x-BF16-00002-of-00002.gguf": "into 2 parts",
    "owner/x-GGUF/resolve/main/x.gguf": "no model there",
    "https://huggingface.co/owner/x-GGUF/resolve/main/none.gguf": r"\(no none.gguf\)",
    "https://huggingface.co/datasets/owner/x": "names no model: write owner/name",
    "https://huggingface.co/owner/x-GGUF/tree/main/IQ4_XS": "names no model: write owner/name",
    "https://example.com/x.gguf": "not an address of huggingface.co: download the file",
}


@pytest.mark.parametrize("source", REFUSED)
def test_a_source_on_the_hub_that_is_no_model_is_refused_before_a_download(source, hub, quantized):
    with pytest.raises(PretrainedError, match=REFUSED[source]) as caught:
        load_pretrained(source)
    assert str(caught.value).isprintable()
    assert not hasattr(hub, "downloaded")


def test_a_config_alone_beside_gguf_files_is_no_folder_of_transformers(hub, quantized):
    (quantized / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(PretrainedError, match="choose one, as in owner/x-GGUF:Q4_K_M"):
        load_pretrained("owner/x-GGUF")


@pytest.mark.parametrize("error", [OSError("no route"), ValueError("a\nb")])
def test_a_hub_that_does_not_answer_is_told_in_one_line(error, hub):
    hub.fails = error
    with pytest.raises(
        PretrainedError, match=r"could not be fetched from the hub \(.*\)"
    ) as caught:
        load_pretrained("owner/name")
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModuleNotFoundError, match=r"owner/name, .* needs the package huggingface"):
        load_pretrained("owner/name")


@pytest.mark.parametrize("source", ["a/b/c", "../x", "owner/", "a b/c", "x"])
def test_a_source_that_is_no_name_is_not_looked_up(source, hub):
    with pytest.raises(PretrainedError, match="no model there"):
        load_pretrained(source)
    assert hub.asked == []
