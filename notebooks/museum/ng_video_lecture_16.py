"""https://github.com/karpathy/ng-video-lecture/issues/16 (plain pass)

The plain pass is in training mode, so its dropout is on and it gives no logits twice; the cached
way is right. Notebook 04's fourth trap.
"""

import torch.nn.functional as F
from parts import Tiny


class Dropout(Tiny):
    def plain(self, ids):
        return F.dropout(super().plain(ids), 0.2, training=self.bug)
