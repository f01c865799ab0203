"""https://github.com/NVIDIA/TensorRT-LLM/pull/15546 (batches and seeds)

Block tables are copied to the device later, from one buffer of the host that is used again at
once. What is copied is the table that was written last.
"""

from parts import Paged


class OneBuffer(Paged):
    def slots(self, cache, table):
        host, queue = [], []
        for row in table:
            host[:] = row
            queue.append(host if self.bug else list(host))
        return super().slots(cache, queue)
