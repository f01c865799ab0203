"""https://github.com/NVIDIA/TensorRT-LLM/pull/15546 (batches and seeds)

Block tables are copied to the device later, from one host buffer that is reused at once. What gets
copied is the table written last.
"""

from parts import Paged


class OneBuffer(Paged):
    def slots(self, cache, table):
        host, queue = [], []
        for row in table:
            host[:] = row
            queue.append(host if self.bug else list(host))
        return super().slots(cache, queue)
