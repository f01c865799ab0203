"""https://github.com/Blaizzy/mlx-vlm/issues/1818 (batches and seeds)

All requests without a seed share one default seed, so they get the same noise.
"""

from parts import Serving


class SameNoise(Serving):
    def dice(self, requests):
        default = {"seed": 42} if self.bug else {}
        return super().dice([default | request for request in requests])
