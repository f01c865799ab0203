"""Shapes, recipes and profiles as plain numbers. Knows no tensor, no file, no device."""

from .address import REF, REPO
from .checks import override
from .profiles import PROFILES, Profile, get_profile
from .shapes import SIZES, GPTConfig
from .training import MODERN, RECIPES, Recipe, TrainConfig, recipe_for
