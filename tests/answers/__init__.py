"""Answers to the exercises, as data: right ones in other styles, wrong ones and the words they get.

RIGHT[exercise][style] is a source. WRONG[exercise][misconception] is (old, new, word): `old` of the
solution's source is replaced by `new`, or `new` is the whole answer where `old` is empty; `word`,
where there is one, is a part of the message. SUBTLE has wrong ones that show late: slow together.
"""

from importlib import import_module
from pathlib import Path

from .right import RIGHT
from .subtle import SUBTLE
from .wrong import WRONG

for path in sorted(Path(__file__).parent.glob("nb*.py")):
    module = import_module(f"{__name__}.{path.stem}")
    RIGHT = RIGHT | module.RIGHT
    WRONG = WRONG | module.WRONG
    SUBTLE = SUBTLE | getattr(module, "SUBTLE", {})

ALL_WRONG = {name: WRONG[name] | SUBTLE.get(name, {}) for name in WRONG}
