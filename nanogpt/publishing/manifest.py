"""manifest.json of an output folder, whatever a disk, an editor or another version made of it."""

from __future__ import annotations

import json
from pathlib import Path

TOP = {"profile": str, "corpus": dict, "environment": dict, "notebooks": list}
CORPUS = {"name": str, "real": bool, "characters": int, "sha256": str}
ENVIRONMENT = {"commit": str}
ENTRY = {
    "notebook": str,
    "ok": bool,
    "seconds": (int, float),
    "error": str,
    "corpus": str,
    "files": list,
}


def read_manifest(folder: Path) -> dict:
    """The manifest of an output folder, empty where there is none; it always has `notebooks`.

    What is not of its kind counts as absent: entries without a name, fields of another type.
    """
    try:
        found = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    card = _of_kind(found, TOP)
    card["environment"] = _of_kind(card.get("environment"), ENVIRONMENT)
    if not CORPUS.keys() <= _of_kind(card.get("corpus"), CORPUS).keys():
        card.pop("corpus", None)
    entries = [_entry(entry) for entry in card.get("notebooks", [])]
    return card | {"notebooks": [entry for entry in entries if "notebook" in entry]}


def _entry(found) -> dict:
    entry = _of_kind(found, ENTRY)
    if "files" in entry:
        entry["files"] = [file for file in entry["files"] if isinstance(file, str)]
    return entry


def _of_kind(found, kinds: dict) -> dict:
    """The fields of a dict but for those of the wrong type; empty for anything else."""
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, kinds.get(key, object))}
