"""https://github.com/vllm-project/vllm/issues/51226 (batches and seeds)

If one request of a batch has no seed, all of the batch's noise comes from the shared generator, and
the other requests' seeds are ignored.
"""

import random

from parts import Serving


class NeighbourWithout(Serving):
    def dice(self, requests):
        if self.bug and any(request.get("seed") is None for request in requests):
            return [random.Random()] * len(requests)
        return super().dice(requests)
