"""manifest.json of an output folder, whatever a disk, an editor or another version made of it."""

from __future__ import annotations

import json
from pathlib import Path

TOP = {"profile": str, "work_seconds": float, "corpus": dict, "environment": dict}
CORPUS = {"name": str, "real": bool, "characters": int, "sha256": str}
ENTRY = {
    "ok": bool,
    "seconds": (int, float),
    "error": (str, type(None)),
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
    card["environment"] = _of_kind(card.get("environment"), {"commit": str})
    if not CORPUS.keys() <= _of_kind(card.get("corpus"), CORPUS).keys():
        card.pop("corpus", None)
    entries = card.get("notebooks") if isinstance(card.get("notebooks"), list) else []
    entries = [_of_kind(entry, ENTRY) for entry in entries]
    return card | {"notebooks": [e for e in entries if isinstance(e.get("notebook"), str)]}


def _of_kind(found, kinds: dict) -> dict:
    """The fields of a dict but for those of the wrong type; empty for anything else."""
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, kinds.get(key, object))}
