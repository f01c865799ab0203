"""https://github.com/EricLBuehler/mistral.rs/pull/1026 (reuse)

The action before a request was changed from Reset to Nothing, so the second request attends to the
first.
"""

from parts import Tiny


class NotReset(Tiny):
    longest, texts = 4096, None

    def start(self, rows):
        if self.texts is None or not self.bug or rows != self.texts.rows:
            self.texts = super().begin()
            self.texts.rows = rows
        return super().start(rows)

    def begin(self):
        return self.texts or super().begin()

    def padded(self, ids, mask, lengths):
        self.texts = None
        return super().padded(ids, mask, lengths)
