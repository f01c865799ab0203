"""Many requests at once, each with the tokens it would get alone, over HTTP: notebooks 09, 10.

From a client's request to its last token:

1. `http` reads the body in the event loop, and refuses what other people's web pages send.
2. `completions` parses it, with the tables of `parameters` and the chat template of `messages`,
   into a `Request`: a prompt, sampling parameters, a seed.
3. `http` hands the request to the engine's thread, where `batch` queues it.
4. At each step the scheduler of `batch` decides how many tokens of which requests are read;
   `sequence` has the blocks for their keys and values.
5. A backend computes the step: `modules` in PyTorch, or `native_steps` in C++, which also samples.
   `backend` is what the engine asks of both.
6. Each token goes back to the event loop, where `completions` turns it into text. `http` sends it.
"""
