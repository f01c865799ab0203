"""Models that transformers made, for all tests of this folder."""

from pretrained_fixtures import kept_folders, own_folder  # noqa: F401
