"""Many requests at once, each with the tokens it would get alone, over HTTP: notebooks 09, 10.

From a client's request to its last token:

1. `http` listens; `app` finds the route, refuses what other people's web pages send, and reads the
   body.
2. `parser` turns it into a `Request` for each text: a prompt, sampling parameters, a seed.
   `requests` has the fields that are served and the error that refuses a request, `unserved` the
   fields that are not served, and `messages` builds a prompt from a chat.
3. `server` hands them to the engine's thread, where `batch` queues them.
4. At each step the scheduler of `batch` decides how many tokens of which requests are read;
   `sequence` has the blocks for their keys and values.
5. A backend computes the step: `modules` in PyTorch, or `native_steps` in C++, which also samples.
   `backend` is what the engine asks of both.
6. Each token goes back to the event loop, where `completions` turns it into text, and `answers`
   sends it.

`jobs` generates the texts of a file of prompts with the same scheduler, without HTTP.
"""
