"""https://github.com/facebookresearch/fairseq/issues/757 (positions)

The position table is shorter than the texts that are accepted, and a text past its end fails with
an index error. Notebook 04's sixth trap.
"""

from parts import Tiny


class ShortTable(Tiny):
    longest = 32

    def __init__(self, seed, bug):
        super().__init__(seed, bug)
        self.longest = 1024 if bug else 32  # the length that it declares
