"""https://github.com/karpathy/ng-video-lecture/issues/16 (plain pass)

The plain pass runs in training mode, so dropout is on and no two passes give the same logits; the
cached path is correct. Notebook 04's fourth trap.
"""

import torch.nn.functional as F
from parts import Tiny


class Dropout(Tiny):
    def plain(self, ids):
        return F.dropout(super().plain(ids), 0.2, training=self.bug)
