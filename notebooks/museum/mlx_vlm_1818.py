"""https://github.com/Blaizzy/mlx-vlm/issues/1818 (batches and seeds)

One default seed serves all requests that name none: they get the same noise.
"""

from parts import Serving


class SameNoise(Serving):
    def dice(self, requests):
        default = {"seed": 42} if self.bug else {}
        return super().dice([default | request for request in requests])
