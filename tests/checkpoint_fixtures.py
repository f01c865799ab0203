"""The metadata of a tiny checkpoint, for the tests that write or damage one."""

from nanogpt.decoder.checkpoint import FORMAT, config_to_json

CHARS = "abcdefghijklm"


def meta_of(model, **changes):
    meta = {
        "format": FORMAT,
        "config": config_to_json(model.config),
        "vocabulary": CHARS,
        "corpus": {"name": "fox", "sha256": "0" * 64},
        "step": 1200,
        "losses": {"train": 1.5, "val": 1.75},
    }
    return meta | changes
