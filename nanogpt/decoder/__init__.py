"""The general decoder: one class for many decoder-only language models.

For models beyond the lecture's: rotary positions, RMSNorm, grouped-query attention, gated MLPs.
`DecoderConfig` holds the hyperparameters, `Decoder` is the module, `step` is the same arithmetic as
one function over plain tensors, and `as_decoder` converts a lecture model.
"""
