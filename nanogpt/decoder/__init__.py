"""The general decoder: one class for the language models that people bring.

For whoever has a model that is not the lecture's: rotary positions, RMSNorm, grouped keys, gates.
`DecoderConfig` is its shape, `Decoder` the module, `step` the same arithmetic as one function over
plain tensors, and `as_decoder` turns a lecture model into one.
"""
