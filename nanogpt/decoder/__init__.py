"""The general decoder: one class for many decoder-only language models.

For models beyond the lecture's: rotary positions, RMSNorm, grouped-query attention, gated MLPs. Its
arithmetic stands twice, as modules and as one function, and a test holds them equal. Start at
config.py and model.py.

    config      `DecoderConfig`, the hyperparameters
    layout      every parameter, declared once: names, shape, the fields that decide
    layers      norms, rotary positions, activations
    model       `Decoder`, the module, for training and with a cache
    step        the same arithmetic as one function over plain tensors
    pack        a lecture model as a Decoder, and back; either as plain tensors

Models from elsewhere:

    standard    is this the package's own arithmetic? Asked before other code computes it
    own_code    do your own classes compute what the package's do?
    skeleton    a model without numbers, in no time and no memory
    checkpoint  files: safetensors and JSON
    identify    what a file is that is no checkpoint
"""
