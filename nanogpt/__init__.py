"""Karpathy's character-level GPT, with a KV cache in every head, at the same tokens.

Read the modules from the bottom up: config, runtime, practice, data, cache, paged, attention, exact,
model, dictcache, convert, checkpoint, generate, speculate, drafts, the engines (build, flat, engine,
compiled, graph, native), flops, parallel, trainer, resume, train, launch, verify, bench, limits, ladder,
sweep, race, past_floor, plots, notebook; then the tools sync, parameters, folder, execute, site, publish,
reproduce, run. Each imports only what stands before it.
"""

__version__ = "0.1.0"
