"""The models of the benchmarks, for PyTorch and for tracing."""

import torch


def configuration(name, dropout):
    """Returns a configuration of transformers, the batch size and the sequence length."""
    import transformers

    # The tiny model is for testing the benchmark itself; its vocabulary size is odd, as that
    # of GPT-2.
    if name in ("gpt2-124m", "gpt2-tiny"):
        tiny = name == "gpt2-tiny"
        sizes = {"vocab_size": 1001, "n_embd": 128, "n_layer": 2, "n_head": 4}
        return (
            transformers.GPT2Config(
                resid_pdrop=dropout,
                embd_pdrop=dropout,
                attn_pdrop=dropout,
                use_cache=False,
                attn_implementation="sdpa",
                **(sizes if tiny else {}),
            ),
            4,
            64 if tiny else 512,
        )
    if name == "llama-768":
        return (
            transformers.LlamaConfig(
                vocab_size=32000,
                hidden_size=768,
                intermediate_size=2048,
                num_hidden_layers=12,
                num_attention_heads=12,
                num_key_value_heads=4,
                max_position_embeddings=2048,
                tie_word_embeddings=False,
                attention_dropout=dropout,
                use_cache=False,
                attn_implementation="sdpa",
            ),
            4,
            512,
        )
    raise SystemExit(f"unknown model '{name}'")


def build(name, dropout):
    """Returns the module, with random weights (seed 0), and one batch of token ids."""
    import transformers

    config, batch, sequence = configuration(name, dropout)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.train()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(
        config.vocab_size, (batch, sequence), generator=generator
    )
    return model, ids
