"""How is the same text decoded faster, up to the machine's limit? Notebooks 06, 07 and 12.

Every engine but Native8, which rounds weights, gives the tokens of the uncached model. It refuses,
in one line, a model whose arithmetic it does not compute; where it cannot be built, its fallback
decodes. Start at base.py, which has the two gates before a token, then read the rungs:

    base             `Engine`: refuses, is built once for a shape and kept, decodes
    shape            what an engine is made for: config, batch, capacity, dtype, device
    eager            rungs 1 to 4: PyTorch, operation by operation
    compiled         rung 5: the step as one compiled call, and rungs 5 and 6 in a CUDA graph
    native           rung 6: the whole loop in C++, with float32 or 8-bit weights

    generation       `generate` and `complete` with an engine, a draft, stop tokens
    noise            the noise of a long text, drawn when it is needed
    stopping         stop tokens, for any reader
    speculation      a draft proposes tokens, the model reads several at once
    drafts           what proposes: an n-gram table, the text itself, a smaller model

    decoder_library  decoder.cpp for Python: its functions, structs and memory layout
    shared_types     its structs as C++ text, written from the Python ones
    toolchain        finds a compiler, and keeps what it has built

    exact            the mode in which cached and uncached logits have the same bits
    portable         weights as bytes, for the live page's JavaScript
"""
